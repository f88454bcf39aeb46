"""The backlog of a fake agent behaves as the scripts of Redis do, and as its documentation says."""

import asyncio
import inspect
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuseboard import Outcome, Reason, Refused
from fuseboard.backlog import Job, JobLost, TryAgain, Undeliverable
from fuseboard.backlog.options import Options
from fuseboard.backlog.queue import Backlog
from fuseboard.errors import Misconfigured
from fuseboard.testing import FakeAgent, fuseboard_agent
from fuseboard.testing.fake_backlog import FakeBacklog
from tests.agents.backlog_scripts import SECOND, BacklogStore
from tests.waiting import eventually

__all__ = ["fuseboard_agent"]

#: What an application calls.
SURFACE = (
    *("submit", "cancel", "revive", "result", "depth"),
    *("work", "stop", "next_job", "finish", "release", "hand_back"),
)


@pytest.mark.parametrize("name", SURFACE)
def test_the_fake_has_the_signature_of_the_backlog(name: str):
    assert inspect.signature(getattr(FakeBacklog, name)) == inspect.signature(getattr(Backlog, name))


async def charge(job: Job) -> bytes:
    if job.text == "refused":
        raise Undeliverable("the card was refused")
    if job.text == "down":
        raise ConnectionError
    return b"charged"


async def test_an_order_is_charged_when_the_vendor_is_back(fuseboard_agent: FakeAgent):
    backlog = fuseboard_agent.backlog("payments-api")
    assert (await backlog.submit("order", job_id="charge-1", tenant="acme")).new
    assert not (await backlog.submit("order", job_id="charge-1")).new
    fuseboard_agent.open("payments-api")
    assert await backlog.run_jobs(charge) == 0
    assert backlog.ids("ready") == ["charge-1"]
    fuseboard_agent.admit("payments-api")
    assert await backlog.run_jobs(charge) == 1
    result = await backlog.result("charge-1")
    assert (result.status, result.value) == ("done", b"charged")
    assert fuseboard_agent.outcomes == [("payments-api", Outcome.OK)]
    assert [job.tenant for job in backlog.submitted] == ["acme"]


async def test_a_job_is_tried_again_by_the_clock_and_then_it_is_dead(fuseboard_agent: FakeAgent):
    backlog = fuseboard_agent.backlog("payments-api", max_tries=2)
    await backlog.submit("down", job_id="a")
    assert await backlog.run_jobs(charge) == 1
    assert await backlog.run_jobs(charge) == 0, "its next try is not due"
    fuseboard_agent.clock.advance(60)
    assert await backlog.run_jobs(charge) == 1
    assert backlog.ids("dead") == ["a"]
    assert (await backlog.result("a")).cause == "ConnectionError"
    assert fuseboard_agent.outcomes == [("payments-api", Outcome.FAILURE)] * 2
    assert await backlog.revive("a")
    assert await backlog.run_jobs(charge) == 1
    await backlog.submit("refused", job_id="b")
    assert await backlog.run_jobs(charge) == 1
    assert (await backlog.result("b")).cause == "Undeliverable: the card was refused"


async def test_a_job_that_is_revived_runs_after_its_deadline(fuseboard_agent: FakeAgent):
    backlog = fuseboard_agent.backlog("payments-api")
    await backlog.submit("refused", job_id="a", deadline_s=60)
    assert await backlog.run_jobs(charge) == 1
    fuseboard_agent.clock.advance(60)
    assert await backlog.revive("a")
    assert await backlog.run_jobs(charge) == 1
    assert backlog.ids("dead") == ["a"]


async def test_a_handler_chooses_when_it_is_tried_again(fuseboard_agent: FakeAgent):
    backlog = fuseboard_agent.backlog("payments-api")
    await backlog.submit("a", job_id="a")

    async def later(job: Job) -> None:
        if job.attempt == 1:
            raise TryAgain(7)

    await backlog.run_jobs(later)
    fuseboard_agent.clock.advance(6.9)
    assert await backlog.run_jobs(later) == 0
    fuseboard_agent.clock.advance(0.2)
    assert await backlog.run_jobs(later) == 1
    assert (await backlog.depth()).done == 1


async def test_submits_are_refused_on_demand_and_when_it_is_full(fuseboard_agent: FakeAgent):
    backlog = fuseboard_agent.backlog("payments-api", max_jobs=2)
    backlog.refuse(Reason.QUOTA, times=1)
    with pytest.raises(Refused) as caught:
        await backlog.submit("a", tenant="acme")
    assert caught.value.decision.reason is Reason.QUOTA
    for name in "ab":
        await backlog.submit(name)
    with pytest.raises(Refused) as caught:
        await backlog.submit("c")
    assert caught.value.decision.reason is Reason.BACKLOG_FULL
    backlog.refuse(Reason.STORE_UNAVAILABLE)
    with pytest.raises(Refused):
        await backlog.submit("c")
    backlog.accept()
    assert (await backlog.depth()).refused == 1
    with pytest.raises(Misconfigured, match="other values of max_jobs"):
        fuseboard_agent.backlog("payments-api", max_jobs=3)
    with pytest.raises(Misconfigured, match="priority"):
        await backlog.submit("c", priority=11)


async def test_a_lease_ends_when_the_test_ends_it(fuseboard_agent: FakeAgent):
    backlog = fuseboard_agent.backlog("payments-api")
    await backlog.submit("a", job_id="a")

    async def slow(job: Job) -> bytes:
        if job.attempt == 1:
            backlog.lose(job.id)
            with pytest.raises(JobLost):
                job.check()
        return b"%d" % job.attempt

    assert await backlog.run_jobs(slow) == 2
    assert (await backlog.result("a")).value == b"2", "what the first one reports is refused"
    with pytest.raises(Misconfigured, match="no worker has"):
        backlog.lose("a")


async def test_work_runs_until_it_is_stopped_and_a_job_can_be_cancelled(fuseboard_agent: FakeAgent):
    backlog = fuseboard_agent.backlog("payments-api")
    begun, ran = asyncio.Event(), []

    async def handler(job: Job) -> None:
        ran.append(job.id)
        if job.id == "long":
            begun.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(backlog.work(handler, workers=2))
    await backlog.submit("x", job_id="long", priority=9)
    await begun.wait()
    assert await backlog.cancel("long")
    await backlog.submit("x", job_id="short")
    await eventually(lambda: not backlog.ids("ready") and not backlog.ids("leased"))
    backlog.stop()
    await working
    assert ran == ["long", "short"]
    assert (await backlog.result("long")).status == "cancelled"


ACTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.integers(1, 10),
            st.sampled_from([0, 0, 5]),
            st.sampled_from([0, 0, 20]),
            st.integers(1, 3),
        ),
        st.tuples(st.just("take"), st.sampled_from(["done", "retry", "dead", "release", "keep"])),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("revive"), st.integers(0, 20)),
        st.tuples(st.just("pass"), st.integers(0, 70)),
    ),
    max_size=40,
)
HOW = {"done": 1, "retry": 2, "dead": 3, "release": 4}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
def test_it_does_what_the_scripts_do(limits: redis.Redis, acts: list[Any]):
    asyncio.run(compare(limits, acts))


async def compare(limits: redis.Redis, acts: list[Any]) -> None:
    limits.flushall()
    agent = FakeAgent()
    agent.clock.now = float(int(agent.clock.now))
    fake = agent.backlog("d", max_jobs=6)
    # Leases of the fake do not end by time.
    store = BacklogStore(limits, now_us=int(agent.clock() * 1e6), max_jobs=6, lease_us=3600 * SECOND)
    number = 0
    for act, *given_ in acts:
        store.now_us = int(agent.clock() * 1e6)
        if act == "submit":
            priority, delay_s, deadline_s, tries = given_
            about = {"priority": priority, "max_tries": tries}
            answer = store.submit(
                f"job-{number:02}", delay_us=delay_s * SECOND, deadline_us=deadline_s * SECOND, **about
            )
            try:
                await fake.submit(
                    b"x", job_id=f"job-{number:02}", delay_s=delay_s, deadline_s=deadline_s or None, **about
                )
            except Refused:
                assert answer == "many_jobs"
            else:
                assert answer == "accepted"
                number += 1
        elif act == "take":
            taken, job = store.take(1), fake._take()
            # The script looks at one job and asks again if it has expired.
            while not taken.jobs and taken.again:
                taken = store.take(1)
            assert taken.ids == ([job.id] if job else [])
            if job and given_[0] != "keep":
                how = given_[0]
                found = store.end(job.id, taken.jobs[0]["fence"], how, delay_us=2 * SECOND, cause="why")
                mine = await fake.end(job.id, job.fence, HOW[how], delay_s=2, result=b"", cause="why")
                assert mine == found
                fake.remove(job)
        elif act == "cancel":
            assert await fake.cancel(f"job-{given_[0]:02}") == (store.cancel(f"job-{given_[0]:02}") != 0)
        elif act == "revive":
            assert await fake.revive(f"job-{given_[0]:02}") == (store.revive(f"job-{given_[0]:02}") != 0)
        else:
            agent.clock.advance(given_[0])
    store.now_us = int(agent.clock() * 1e6)
    figures, depth = store.look()[0], await fake.depth()
    # The scripts move what is due when a worker asks.
    assert depth.ready + depth.delayed == figures.ready + figures.delayed
    for name in ("leased", "dead", "bytes", "results"):
        assert getattr(depth, name) == getattr(figures, name), name
    for name in ("submitted", "taken", "done", "died", "cancelled", "expired", "refused", "requeued"):
        assert getattr(depth, name) == getattr(figures, name), name


def test_its_options_are_those_of_the_agent():
    with pytest.raises(Misconfigured, match="max_jobs"):
        FakeAgent().backlog("d", max_jobs=0)
    assert FakeAgent().backlog("d").options == Options()
