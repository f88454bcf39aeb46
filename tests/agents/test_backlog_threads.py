"""A backlog while Redis is down, and from threads."""

import asyncio
import signal
import threading
import time

import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, AgentSettings, Misconfigured, Reason, Refused, StoreUnavailable, blocking
from fuseboard.backlog import Job, JobLost, Undeliverable, threads
from fuseboard.backlog.queue import Backlog
from tests.agents.published import publish
from tests.agents.test_backlog import POLICY_HERE, TENANTS
from tests.waiting import eventually, wait_until


class TestOutages:
    @pytest.mark.usefixtures("usual_answers")
    async def test_a_job_goes_on_while_redis_is_down_and_its_end_is_reported_afterwards(self, valkey: Valkey):
        with redis.Redis.from_url(valkey.url) as client:
            publish(client, POLICY_HERE, revision=1, tenants=TENANTS)
            async with Agent(settings=AgentSettings(redis_url=valkey.url, server="shop-1")) as agent:
                backlog, begun, go_on = agent.backlog("payments", lease_s=2.0), [], asyncio.Event()

                async def run(job: Job) -> str:
                    begun.append(job.attempt)
                    await go_on.wait()
                    return "late"

                async def refuses() -> bool:
                    try:
                        await backlog.submit(b"")
                    except Refused as refused:
                        return refused.decision.reason is Reason.STORE_UNAVAILABLE
                    return False

                await backlog.submit(b"", job_id="a")
                working = asyncio.create_task(backlog.work(run))
                await eventually(lambda: begun)
                valkey.process.send_signal(signal.SIGSTOP)
                try:
                    go_on.set()
                    await eventually(refuses)
                finally:
                    valkey.process.send_signal(signal.SIGCONT)

                async def done() -> bool:
                    try:
                        return (await backlog.result("a")).status == "done"
                    except StoreUnavailable:
                        return False

                await eventually(done)
                backlog.stop()
                await working


class TestThreads:
    def test_jobs_run_in_threads_until_stop(self, limits: redis.Redis, redis_url: str):
        publish(limits, POLICY_HERE, revision=1, tenants=TENANTS)
        with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-2")) as agent:
            backlog, names = agent.backlog("payments"), set()

            def run(job: Job) -> str:
                names.add(threading.current_thread().name)
                time.sleep(0.02)
                if job.text == "3":
                    raise Undeliverable("three")
                return job.text

            for number in range(20):
                backlog.submit(str(number), job_id=f"job-{number}")
            working = threading.Thread(target=lambda: backlog.work(run, workers=4))
            working.start()
            assert backlog.result("job-7", wait_s=20).value == b"7"
            assert backlog.result("job-3", wait_s=20).status == "dead"
            wait_until(lambda: backlog.depth().jobs == 0)
            backlog.stop()
            working.join(20)
            assert not working.is_alive()
            assert len(names) == 4
            # Nothing takes jobs any more.
            backlog.submit(b"", job_id="last")
            assert backlog.cancel("last")

    def test_a_thread_that_does_not_end_loses_its_job(self, limits: redis.Redis, redis_url: str):
        publish(limits, POLICY_HERE, revision=1, tenants=TENANTS)
        with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-2")) as agent:
            backlog, jobs, end = agent.backlog("payments"), [], threading.Event()

            def run(job: Job) -> None:
                jobs.append(job)
                end.wait(60)

            backlog.submit(b"", job_id="long")
            working = threading.Thread(target=lambda: backlog.work(run, workers=2, grace_s=0.1))
            working.start()
            wait_until(lambda: jobs)
            backlog.stop()
            working.join(20)
            assert backlog.result("long").status == "ready"
            # The other worker, which waited, did not take it once more.
            assert backlog.depth().taken == 1
            with pytest.raises(JobLost):
                jobs[0].check()
            end.set()

    def test_work_ends_although_its_jobs_cannot_be_handed_back_in_time(
        self, limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ):
        async def hangs(backlog: Backlog, job: Job) -> None:
            handed.append(job.id)
            await asyncio.Event().wait()

        handed: list[str] = []
        monkeypatch.setattr(Backlog, "hand_back", hangs)
        publish(limits, POLICY_HERE, revision=1, tenants=TENANTS)
        with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-2")) as agent:
            backlog, begun, end = agent.backlog("payments"), [], threading.Event()

            def run(job: Job) -> None:
                begun.append(job.id)
                if len(begun) == 2:
                    monkeypatch.setattr(threads, "LATE_S", 0.05)
                    backlog.stop()
                end.wait(60)

            for name in ("a", "b"):
                backlog.submit(b"", job_id=name)
            backlog.work(run, workers=2, grace_s=0)
            assert sorted(handed) == ["a", "b"]
            end.set()

    def test_wrong_use_is_refused(self, limits: redis.Redis, redis_url: str):
        async def run(job: Job) -> None: ...

        with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-2")) as agent:
            backlog = agent.backlog("payments")
            with pytest.raises(Misconfigured, match="pass a plain function"):
                backlog.work(run)  # type: ignore[arg-type]
            with pytest.raises(Misconfigured, match="wait_s must be"):
                backlog.result("a", wait_s=None)  # type: ignore[arg-type]
