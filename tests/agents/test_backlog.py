"""``agent.backlog``: what clients and workers see, on a real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Misconfigured, Reason, Refused, StoreUnavailable
from fuseboard.backlog import Job, JobLost, TryAgain, Undeliverable
from fuseboard.backlog import workers as workers_module
from fuseboard.contract import keys
from fuseboard.contract.policy import BreakerPolicy, Dependency, Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm
from tests.agents.published import publish
from tests.agents.servers import PATIENT, POLICY
from tests.waiting import eventually

SLOTS = Limit(name="slots", limit=2, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
CALLS = Limit(name="calls", limit=1000, window_ms=1000, algorithm=Algorithm.SLIDING_WINDOW)
TOKENS = Limit(name="tokens", limit=100, window_ms=1000, burst=100, measure="tokens")
BREAKER = BreakerPolicy(consecutive_failures=3, open_ms=60_000, minimum_servers=1)
QUOTA = Limit(name="requests", limit=5, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW)
ON_VENDOR = msgspec.structs.replace(QUOTA, name="payments", limit=2, dependency="payments")
POLICY_HERE = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(QUOTA,)), Tier(name="narrow", quotas=(QUOTA, ON_VENDOR))),
    dependencies=(
        Dependency(name="payments", vendor_limits=(CALLS, TOKENS), breaker=BREAKER),
        Dependency(name="slow", vendor_limits=(SLOTS,), breaker=BREAKER),
    ),
    tuning=PATIENT,
)
TENANTS = {"acme": TenantRecord(tier="free"), "globex": TenantRecord(tier="narrow")}


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str) -> AsyncIterator[Agent]:
    publish(limits, POLICY_HERE, revision=1, tenants=TENANTS)
    async with Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1")) as agent:
        yield agent


async def echo(job: Job) -> bytes:
    return b"done " + job.payload


class TestClients:
    async def test_a_job_runs_and_its_result_can_be_waited_for(self, agent: Agent):
        backlog = agent.backlog("payments")
        submitted = await backlog.submit("order 17", job_id="order-17", priority=8)
        assert (submitted.id, submitted.new, submitted.jobs) == ("order-17", True, 1)
        working = asyncio.create_task(backlog.work(echo, workers=2))
        result = await backlog.result("order-17", wait_s=20)
        assert (result.status, result.value) == ("done", b"done order 17")
        assert (await backlog.result("never-submitted")).status == "unknown"
        backlog.stop()
        await working

    async def test_submitting_again_changes_and_spends_nothing(self, agent: Agent):
        backlog = agent.backlog("payments")
        for _ in range(8):
            assert (await backlog.submit(b"", job_id="once", tenant="acme")).id == "once"
            await returned(agent)
        assert (await backlog.depth()).submitted == 1
        assert (await agent.admit_request("acme")).allowed

    async def test_the_tenant_pays_when_it_submits(self, agent: Agent):
        backlog = agent.backlog("payments")
        for _ in range(5):
            await backlog.submit(b"", tenant="acme")
        with pytest.raises(Refused) as refused:
            await backlog.submit(b"", tenant="acme")
        assert refused.value.decision.reason is Reason.QUOTA
        assert (await backlog.depth()).jobs == 5

    async def test_quotas_on_the_dependency_are_spent_too_and_the_others_given_back(self, agent: Agent):
        backlog = agent.backlog("payments")
        for _ in range(2):
            await backlog.submit(b"", tenant="globex")
        for _ in range(4):
            with pytest.raises(Refused) as refused:
                await backlog.submit(b"", tenant="globex")
            assert (refused.value.decision.reason, refused.value.decision.rule) == (Reason.QUOTA, "payments")
            await returned(agent)
        assert (await agent.admit_request("globex")).allowed

    async def test_a_full_backlog_refuses_with_its_own_reason_and_gives_quotas_back(self, agent: Agent):
        backlog = agent.backlog("payments", max_jobs=2)
        for _ in range(2):
            await backlog.submit(b"")
        for _ in range(8):
            with pytest.raises(Refused) as refused:
                await backlog.submit(b"", tenant="acme")
            decision = refused.value.decision
            assert (decision.reason, decision.rule) == (Reason.BACKLOG_FULL, "payments")
            assert decision.retry_after_ms > 0
            await returned(agent)
        assert (await agent.admit_request("acme")).allowed

    async def test_a_backlog_is_bounded_in_bytes(self, agent: Agent):
        backlog = agent.backlog("payments", max_bytes=100)
        await backlog.submit(b"x" * 60)
        with pytest.raises(Refused) as refused:
            await backlog.submit(b"x" * 60)
        assert refused.value.decision.reason is Reason.BACKLOG_FULL
        with pytest.raises(Misconfigured, match="Store it elsewhere"):
            await backlog.submit(b"x" * (16 * 2**10 + 1))

    async def test_a_cost_that_no_limit_can_admit_is_refused_at_once(self, agent: Agent):
        with pytest.raises(Refused) as refused:
            await agent.backlog("payments").submit(b"", costs={"tokens": 101})
        assert refused.value.decision.reason is Reason.VENDOR_LIMIT

    async def test_cancelled_and_expired_jobs_do_not_run(self, agent: Agent):
        backlog, ran = agent.backlog("payments"), []

        async def note(job: Job) -> None:
            ran.append(job.id)

        await backlog.submit(b"", job_id="cancelled", delay_s=60)
        assert await backlog.cancel("cancelled")
        assert not await backlog.cancel("cancelled")
        await backlog.submit(b"", job_id="expired", deadline_s=0.001)
        await asyncio.sleep(0.01)  # its deadline passes
        await backlog.submit(b"", job_id="runs")
        working = asyncio.create_task(backlog.work(note))
        assert (await backlog.result("runs", wait_s=20)).status == "done"
        assert (await backlog.result("cancelled")).status == "cancelled"
        assert (await backlog.result("expired", wait_s=20)).status == "expired"
        assert ran == ["runs"]
        working.cancel()

    async def test_without_redis_nothing_is_queued(self, agent: Agent, limits: redis.Redis):
        backlog = agent.backlog("payments")
        await agent._runtime.admission.store.drop()
        agent._runtime.admission.health._go_local("a test")
        with pytest.raises(Refused) as refused:
            await backlog.submit(b"")
        assert refused.value.decision.reason is Reason.STORE_UNAVAILABLE
        with pytest.raises(StoreUnavailable):
            await backlog.depth()

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda backlog: backlog.submit(b"", priority=0), "The highest goes first"),
            (lambda backlog: backlog.submit(17), "encode it"),
            (lambda backlog: backlog.submit(b"", job_id="a\nb"), "the id of a job"),
            (lambda backlog: backlog.submit(b"", delay_s=-1), "delay_s must be"),
            (lambda backlog: backlog.submit(b"", max_tries=9), "max_tries must be 1 to 5"),
            (lambda backlog: backlog.submit("\ud800"), "not valid Unicode"),
            (lambda backlog: backlog.result("a", wait_s="1"), "wait_s must be"),
            (lambda backlog: backlog.cancel(None), "the id of a job"),
            (lambda backlog: backlog.work(None), "the handler must be"),
            (lambda backlog: backlog.work(echo, workers=0), "workers must be"),
            (lambda backlog: backlog.work(echo, grace_s="1"), "grace_s must be"),
        ],
    )
    async def test_wrong_use_says_what_to_do(self, agent: Agent, call: Callable, says: str):
        with pytest.raises(Misconfigured, match=says):
            await call(agent.backlog("payments"))

    async def test_one_process_uses_one_set_of_options(self, agent: Agent):
        assert agent.backlog("payments", fair=True) is agent.backlog("payments", fair=True)
        with pytest.raises(Misconfigured, match="other values of fair"):
            agent.backlog("payments")


class TestWorkers:
    async def test_a_pod_that_turns_fair_on_first_keeps_the_order_of_the_others(
        self, agent: Agent, redis_url: str
    ):
        backlog = agent.backlog("payments")
        await backlog.submit(b"", job_id="old")
        async with Agent(settings=AgentSettings(redis_url=redis_url, server="shop-2")) as other:
            await other.backlog("payments", fair=True).submit(b"", job_id="new", priority=6)
        assert [(await backlog.next_job()).id for _ in range(2)] == ["new", "old"]

    async def test_higher_priority_runs_first_and_equal_ones_in_order(self, agent: Agent):
        backlog, order = agent.backlog("payments"), []

        async def note(job: Job) -> None:
            order.append(job.text)

        for number, priority in enumerate([5, 1, 10, 5, 10]):
            await backlog.submit(f"{priority}.{number}", priority=priority)
        working = asyncio.create_task(backlog.work(note, workers=1))
        await eventually(lambda: len(order) == 5)
        assert order == ["10.2", "10.4", "5.0", "5.3", "1.1"]
        working.cancel()

    async def test_a_failed_job_is_tried_again_then_it_is_a_dead_letter(
        self, agent: Agent, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(workers_module, "RETRY_S", (0.01, 0.01))
        backlog, attempts = agent.backlog("payments", max_tries=2), []

        async def fail(job: Job) -> str:
            attempts.append(job.attempt)
            if len(attempts) <= 2:
                raise ValueError("a secret of the payload")
            return "at last"

        await backlog.submit(b"", job_id="a")
        working = asyncio.create_task(backlog.work(fail))
        result = await backlog.result("a", wait_s=20)
        assert (result.status, result.cause, attempts) == ("dead", "ValueError", [1, 2])
        assert (await backlog.depth()).dead == 1
        assert await backlog.revive("a")
        await eventually(lambda: len(attempts) == 3)
        assert (await backlog.result("a", wait_s=20)).value == b"at last"
        working.cancel()

    async def test_a_handler_chooses_when_to_try_again_and_when_never(self, agent: Agent):
        backlog, attempts = agent.backlog("payments"), []

        async def run(job: Job) -> None:
            attempts.append((job.id, job.attempt))
            if job.id == "never":
                raise Undeliverable("no such order")
            if job.attempt == 1:
                raise TryAgain(0.01)

        await backlog.submit(b"", job_id="again")
        await backlog.submit(b"", job_id="never")
        working = asyncio.create_task(backlog.work(run))
        assert (await backlog.result("again", wait_s=20)).status == "done"
        never = await backlog.result("never", wait_s=20)
        assert (never.status, never.cause) == ("dead", "Undeliverable: no such order")
        assert sorted(attempts) == [("again", 1), ("again", 2), ("never", 1)]
        working.cancel()

    async def test_a_handler_that_cancels_itself_or_asks_for_no_time_spends_its_tries(
        self, agent: Agent, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(workers_module, "RETRY_S", (0.01, 0.01))
        backlog, attempts = agent.backlog("payments", max_tries=2), []

        async def run(job: Job) -> None:
            attempts.append(job.id)
            if job.id == "cancels":
                raise asyncio.CancelledError
            raise TryAgain(float("nan"))

        for name in ("cancels", "nan"):
            await backlog.submit(b"", job_id=name)
        working = asyncio.create_task(backlog.work(run))
        for name, cause in (("cancels", "CancelledError"), ("nan", "Misconfigured")):
            result = await backlog.result(name, wait_s=20)
            assert (result.status, result.cause) == ("dead", cause)
        assert sorted(attempts) == ["cancels", "cancels", "nan", "nan"]
        working.cancel()

    async def test_failures_open_the_breaker_and_then_nothing_is_handed_out(self, agent: Agent):
        backlog = agent.backlog("payments")

        async def fail(job: Job) -> None:
            raise ConnectionError("vendor is down")

        for _ in range(20):
            await backlog.submit(b"")
        working = asyncio.create_task(backlog.work(fail, workers=1))
        await eventually(lambda: not agent._runtime.admission.is_closed("payments"))

        async def resting() -> bool:
            return (await backlog.depth()).leased == 0

        await eventually(resting)
        depth = await backlog.depth()
        assert depth.taken < 20
        assert depth.ready + depth.delayed == 20
        working.cancel()

    async def test_a_slot_is_held_for_the_time_of_a_job(self, agent: Agent, limits: redis.Redis):
        backlog, busy, most = agent.backlog("slow"), 0, []

        async def run(job: Job) -> None:
            nonlocal busy
            busy += 1
            most.append(busy)
            await asyncio.sleep(0.02)
            busy -= 1

        for _ in range(10):
            await backlog.submit(b"")
        working = asyncio.create_task(backlog.work(run, workers=8))

        async def empty() -> bool:
            return (await backlog.depth()).done == 10

        await eventually(empty)
        assert max(most) == 2
        await eventually(lambda: limits.zcard(keys.vendor_limit("production", "slow", "slots")) == 0)
        working.cancel()

    async def test_a_lease_is_renewed_while_a_job_blocks_the_loop(self, agent: Agent):
        backlog = agent.backlog("payments", lease_s=0.3)
        ran = []

        async def block(job: Job) -> None:
            ran.append(job.attempt)
            time.sleep(1.0)  # noqa: ASYNC251 - the subject of the test
            job.check()

        await backlog.submit(b"", job_id="a")
        working = asyncio.create_task(backlog.work(block))
        assert (await backlog.result("a", wait_s=20)).status == "done"
        assert ran == [1]
        working.cancel()

    async def test_a_job_learns_that_it_was_cancelled_or_lost(self, agent: Agent, limits: redis.Redis):
        backlog, ended = agent.backlog("payments", lease_s=0.2), []

        async def endless(job: Job) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                with pytest.raises(JobLost):
                    job.check()
                ended.append(job.id)
                raise

        await backlog.submit(b"", job_id="cancelled")
        working = asyncio.create_task(backlog.work(endless))

        async def leased() -> bool:
            return (await backlog.depth()).leased == 1

        await eventually(leased)
        assert await backlog.cancel("cancelled")
        assert (await backlog.result("cancelled", wait_s=20)).status == "cancelled"
        await backlog.submit(b"", job_id="lost")
        await eventually(leased)
        limits.delete(*(keys.backlog("production", "payments", part) for part in keys.BACKLOG_PARTS))
        await eventually(lambda: ended == ["cancelled", "lost"])
        working.cancel()

    async def test_a_stop_finishes_jobs_and_hands_the_others_out_again(self, agent: Agent):
        backlog, begun, stopped = agent.backlog("payments"), [], asyncio.Event()

        async def run(job: Job) -> None:
            begun.append(job.id)
            await (stopped.wait() if job.id == "short" else asyncio.sleep(60))

        await backlog.submit(b"", job_id="short")
        await backlog.submit(b"", job_id="long")
        working = asyncio.create_task(backlog.work(run, grace_s=0.5))
        await eventually(lambda: len(begun) == 2)
        backlog.stop()
        stopped.set()
        await working
        assert (await backlog.result("short")).status == "done"
        assert (await backlog.result("long")).status == "ready"
        depth = await backlog.depth()
        assert (depth.leased, depth.ready) == (0, 1)

    async def test_an_idle_worker_hears_of_a_job_at_once(self, agent: Agent):
        backlog = agent.backlog("payments")
        working = asyncio.create_task(backlog.work(echo))
        took = []
        for number in range(5):
            await asyncio.sleep(0.2)  # the worker rests
            began = time.monotonic()
            await backlog.submit(b"", job_id=f"{number}")
            await backlog.result(f"{number}", wait_s=20)
            took.append(time.monotonic() - began)
        # Without hints, it looks about once per second.
        assert sorted(took)[2] < 0.4
        working.cancel()


async def returned(agent: Agent) -> None:
    """Redis has what the agent gives back."""
    admission = agent._runtime.admission
    admission.settlements.flush()
    await admission.store.call("TIME")
