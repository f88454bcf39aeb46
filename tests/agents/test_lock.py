"""``agent.lock``: waiting, renewal, loss, and what a process that was stopped can still do."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, AgentSettings, LockLost, LockTaken, Misconfigured, StoreUnavailable, blocking
from fuseboard.contract import keys
from fuseboard.primitives import lock as lock_module
from tests.agents.gateways import gateway_running
from tests.patient_pods import usual_answers
from tests.waiting import eventually, wait_until

KEY = keys.lock("production", "report")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str) -> AsyncIterator[Agent]:
    async with Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1")) as agent:
        yield agent


@pytest.fixture
def threaded(limits: redis.Redis, redis_url: str) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-2")) as agent:
        yield agent


class TestOneHolder:
    async def test_a_second_one_waits_until_the_first_releases(self, agent: Agent):
        order: list[str] = []

        async def second() -> int:
            async with agent.lock("report") as lock:
                order.append("second")
                return lock.fence

        async with agent.lock("report") as first:
            waiting = asyncio.create_task(second())
            await asyncio.sleep(0.1)  # it waits for this time
            order.append("first")
        assert await waiting > first.fence
        assert order == ["first", "second"]
        assert not first.valid
        assert (agent.locks.figures.acquired, agent.locks.figures.taken) == (2, 0)
        assert agent.resilience()["locks"]["waited_s"] > 0

    async def test_a_wait_is_bounded_and_its_error_says_when_the_lock_ends(self, agent: Agent):
        async with agent.lock("report", ttl_s=20):
            with pytest.raises(LockTaken, match="'report' is taken, for at most") as taken:
                async with agent.lock("report", wait_s=0.05):
                    pytest.fail("entered")
            assert 5 < taken.value.retry_after_s <= 20
        assert agent.locks.figures.taken == 1

    async def test_other_names_do_not_wait(self, agent: Agent):
        async with agent.lock("report") as report, agent.lock("export", wait_s=0) as export:
            assert report.valid
            assert export.valid

    async def test_a_cancelled_wait_takes_nothing(self, agent: Agent, limits: redis.Redis):
        async with agent.lock("report"):
            waiting = asyncio.create_task(agent.lock("report").__aenter__())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with agent.lock("report", wait_s=1):
            pass

    async def test_a_block_that_fails_releases_the_lock_and_raises_its_own_error(self, agent: Agent):
        with pytest.raises(LookupError):
            async with agent.lock("report"):
                raise LookupError
        async with agent.lock("report", wait_s=0):
            pass

    @pytest.mark.parametrize(
        "wrong", [{"ttl_s": 0}, {"ttl_s": 7200}, {"wait_s": 11}, {"wait_s": -1}, {"ttl_s": "30"}]
    )
    def test_wrong_use_raises_at_once(self, threaded: blocking.Agent, wrong: dict[str, Any]):
        with pytest.raises(Misconfigured, match="must be"):
            threaded.lock("report", **wrong)
        with pytest.raises(Misconfigured, match="name of a lock"):
            threaded.lock("")
        with pytest.raises(Misconfigured, match="name of a lock"):
            threaded.lock(5)  # type: ignore[arg-type] # wrong on purpose


class TestThreads:
    def test_threads_exclude_each_other(self, threaded: blocking.Agent):
        inside: list[int] = []

        def work(_: int) -> int:
            with threaded.lock("report") as lock:
                inside.append(lock.fence)
                assert len(inside) == 1
                inside.pop()
                return lock.fence

        with ThreadPoolExecutor(4) as pool:
            fences = list(pool.map(work, range(12)))
        assert len(set(fences)) == 12

    async def test_a_blocking_lock_refuses_the_event_loop_and_alock_does_not(self, threaded: blocking.Agent):
        with pytest.raises(Misconfigured, match="block the event loop"), threaded.lock("report"):
            pytest.fail("entered")
        async with threaded.alock("report") as lock:
            assert lock.valid

    def test_a_forked_process_has_no_lock_of_its_parent(self, threaded: blocking.Agent):
        with threaded.lock("report") as lock:
            child = os.fork()
            if child == 0:
                os._exit(7 if lock.valid else 0)
            assert os.waitpid(child, 0)[1] == 0
            assert lock.valid

    def test_a_fork_inside_a_block_or_before_it_ends_nothing_of_the_parent_and_hangs_nothing(
        self, threaded: blocking.Agent
    ):
        before = threaded.lock("export")
        with threaded.lock("report") as lock:
            child = os.fork()
            if child == 0:
                ended = 1
                try:
                    try:
                        lock.__exit__(None, None, None)
                    except LockLost:
                        with pytest.raises(Misconfigured, match="after the fork"):
                            before.__enter__()
                        ended = 0
                finally:
                    os._exit(ended)
            wait_until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0), "the end of the child")
            assert lock.valid


class TestRenewal:
    async def test_a_busy_event_loop_does_not_lose_the_lock(self, agent: Agent, limits: redis.Redis):
        async with agent.lock("report", ttl_s=6) as lock:
            for _ in range(2):  # an application that blocks its loop
                before = limits.get(KEY)
                wait_until(lambda: limits.get(KEY) != before, "a renewal")  # noqa: B023
            lock.check()

    async def test_a_lock_that_redis_lost_is_reported_before_and_after(
        self, agent: Agent, limits: redis.Redis, caplog: pytest.LogCaptureFixture
    ):
        lock = agent.lock("report", ttl_s=0.3)
        await lock.__aenter__()
        limits.delete(KEY)
        await eventually(lambda: not lock.valid)
        with pytest.raises(LockLost, match="Redis has ended it"):
            lock.check()
        with pytest.raises(LockLost, match="Redis has ended it"):
            await lock.__aexit__(None, None, None)
        assert agent.locks.figures.lost == 1
        assert "lock.lost name='report'" in caplog.text

    async def test_a_block_notices_at_its_end_that_it_lost_the_lock(self, agent: Agent, limits: redis.Redis):
        with pytest.raises(LockLost, match="Redis had ended it"):
            async with agent.lock("report"):
                limits.set(KEY, f"another {2**52} {2**52}")
        assert limits.get(KEY).startswith(b"another")

    async def test_a_lock_held_for_long_is_reported_once(
        self,
        agent: Agent,
        limits: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(lock_module, "LONG_HELD_S", 0.05)
        # A pause of the machine is shorter.
        async with agent.lock("report", ttl_s=3.0):
            await eventually(lambda: agent.locks.figures.long_held)
            for _ in range(2):  # it looks again before each renewal
                before = limits.get(KEY)
                await eventually(lambda: limits.get(KEY) != before, "a renewal")  # noqa: B023
        assert caplog.text.count("lock.long_held name='report'") == 1


class TestWithoutRedis:
    def test_no_pod_gives_itself_a_lock(self, valkey: Valkey):
        settings = AgentSettings(redis_url=valkey.url, server="shop-1")
        with blocking.Agent(settings=settings) as agent:
            with agent.lock("report"):
                pass
            valkey.stop()
            with pytest.raises(StoreUnavailable, match="cannot be asked"), agent.lock("report"):
                pytest.fail("entered")
            valkey.start()
            with agent.lock("report"):
                pass

    def test_a_lock_is_lost_while_redis_is_frozen_and_nothing_hangs(self, valkey: Valkey):
        settings = AgentSettings(redis_url=valkey.url, server="shop-1")
        with blocking.Agent(settings=settings) as agent:
            assert valkey.process is not None
            lock = agent.lock("report", ttl_s=0.5)
            lock.__enter__()
            with usual_answers():
                valkey.process.send_signal(signal.SIGSTOP)
                wait_until(lambda: not lock.valid)
                # Or the answer to a renewal that was under way is late: the machine decides what comes first.
                with pytest.raises(LockLost, match=r"not renewed|no answer"):
                    lock.__exit__(None, None, None)
                with pytest.raises(StoreUnavailable), agent.lock("report"):
                    pytest.fail("entered")
            valkey.process.send_signal(signal.SIGCONT)
            # Questions of callers that gave up took nothing.
            with agent.lock("report", wait_s=10):
                pass

    def test_a_lock_that_could_not_be_released_is_released_when_redis_answers(self, valkey: Valkey):
        settings = AgentSettings(redis_url=valkey.url, server="shop-1")
        with blocking.Agent(settings=settings) as agent:
            assert valkey.process is not None
            lock = agent.lock("report", ttl_s=300)
            lock.__enter__()
            with usual_answers():
                valkey.process.send_signal(signal.SIGSTOP)
                # It loses the connection: the release is not sent.
                with pytest.raises(StoreUnavailable), agent.lock("other"):
                    pytest.fail("entered")
                lock.__exit__(None, None, None)
            valkey.process.send_signal(signal.SIGCONT)
            with agent.lock("report", wait_s=10):
                pass


def test_twelve_processes_never_pass_the_fencing_check_together(limits: redis.Redis, redis_url: str):
    """The holder is stopped for longer than its lock lasts, again and again."""
    command = [sys.executable, "-m", "tests.agents.lock_process", redis_url, "0.6", "12"]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(child) for child in parent.stdout.readline().split()]
    assert len(children) == 12
    stopped = 0

    def seen(verdict: str) -> set[str]:
        """The processes whose writes ended like this."""
        writes = [write.decode().split() for write in limits.lrange("writes", 0, -1)]
        return {writer for found, _, writer in writes if found == verdict}

    try:
        wait_until(lambda: limits.llen("writes") >= 12, "the first writes", within_s=90)
        while stopped < 4 or not seen("refused") or len(seen("written")) <= 3:
            holder = int(limits.get("holder"))
            os.kill(holder, signal.SIGSTOP)
            try:
                wait_until(lambda: limits.get("holder") != b"%d" % holder, "another holder")  # noqa: B023
                written = limits.llen("writes")
                wait_until(lambda: limits.llen("writes") > written, "its writes")  # noqa: B023
            finally:
                os.kill(holder, signal.SIGCONT)
            stopped += 1
        ended = limits.llen("writes")
        wait_until(lambda: limits.llen("writes") > ended + 12, "writes after that")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        parent.communicate()
    writes = [write.decode().split() for write in limits.lrange("writes", 0, -1)]
    written = [(int(fence), writer) for verdict, fence, writer in writes if verdict == "written"]
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(written))
    # A number belongs to one process: two never write in turn.
    assert len({fence for fence, _ in written}) == len(set(written))


def test_the_code_of_the_page_works(redis_url: str, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    code = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/primitives.md").read_text(), re.M | re.S)[0]
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/primitives.md", "exec"), names)  # noqa: S102 - our own page
    written: list[int] = []

    class Reports:
        def read(self) -> list[int]:
            return [1]

        def write(self, rows: list[int], fence: int) -> None:
            written.append(fence)

    with names["agent"]:
        for _ in range(2):
            names["build_report"](Reports())
    assert written[0] < written[1]


def test_heartbeats_report_locks_and_each_run_counts_from_zero(redis_url: str, limits: redis.Redis):
    with gateway_running() as gateway:
        settings = AgentSettings(
            redis_url=redis_url, server="shop-1", service="shop", url=gateway.url, token="fb_sel_secret"
        )
        for _ in range(2):
            with blocking.Agent(settings=settings) as agent, agent.lock("report"):
                pass
    runs = [beat.primitives for beat in gateway.beats if beat.leaving]
    assert [one and (one.locks.acquired, one.holding) for one in runs] == [(1, 0)] * 2
    assert all(beat.primitives is not None for beat in gateway.beats)
