"""The agent for code without an event loop: threads, forks, exits, and a thread that hangs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard import AgentSettings, Misconfigured, Mode, Reason, Refused, blocking
from fuseboard.agent_api import threads
from fuseboard.agent_api.threads import submit
from fuseboard.contract.policy import Dependency, Limit, Tier
from fuseboard.contract.words import Algorithm, FailurePolicy
from tests.agents.gateways import gateway_running
from tests.agents.published import decides_by, publish
from tests.agents.servers import BREAKER, PATIENT, POLICY
from tests.waiting import PATIENCE_S, wait_until

FIFTY = Limit(
    name="requests",
    limit=50,
    window_ms=60_000,
    algorithm=Algorithm.SLIDING_WINDOW,
    failure_policy=FailurePolicy.LOCAL_SHARE,
)
ONE = Limit(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(FIFTY,)),),
    dependencies=(
        Dependency(name="payments", breaker=BREAKER),
        Dependency(name="single", vendor_limits=(ONE,), breaker=BREAKER),
    ),
    tuning=PATIENT,
)


@pytest.fixture
def settings(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AgentSettings:
    publish(limits, RULES, revision=3)
    return AgentSettings(redis_url=redis_url, server="shop-1", state_dir=tmp_path)


@pytest.fixture
def agent(settings: AgentSettings) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=settings) as agent:
        wait_until(decides_by(agent, 3))
        yield agent


def test_many_threads_spend_one_limit_exactly(agent: blocking.Agent):
    with ThreadPoolExecutor(16) as pool:
        decisions = list(pool.map(lambda _: agent.admit_request("acme"), range(120)))
    assert sum(decision.allowed for decision in decisions) == 50
    refused = next(decision for decision in decisions if not decision.allowed)
    assert (refused.reason, refused.rule, refused.revision) == (Reason.QUOTA, "requests", 3)
    assert agent.late == 0


def test_it_starts_on_first_use_and_calls_are_allowed_after_its_stop(settings: AgentSettings):
    agent = blocking.Agent(settings=settings)
    assert not agent.running
    assert agent.admit_request("acme").allowed
    assert agent.mode is Mode.SHARED
    assert agent.running
    agent.stop()
    agent.stop()
    assert agent.admit_request("acme").allowed
    with agent.call("payments"):
        """Calls still in flight at the end are not failed by it."""
    agent.start()
    assert agent.admit_request("acme").allowed
    assert agent.mode is Mode.SHARED
    agent.stop()


def test_how_the_block_ends_is_how_the_call_ended_and_its_slot_is_free(agent: blocking.Agent):
    with agent.call("single"), pytest.raises(Refused) as refused:
        agent.admit_call("single")
    assert refused.value.decision.reason is Reason.CONCURRENCY
    with pytest.raises(TimeoutError), agent.call("single", wait_s=5):
        raise TimeoutError
    with agent.call("single", wait_s=5) as permit:
        permit.settle("tokens", 5)
    counted = {
        dependency.dependency: (dependency.ok, dependency.failure)
        for dependency in agent._started().counters.wire().dependencies
    }
    assert counted["single"][1] == 1


def test_decorated_functions(agent: blocking.Agent):
    @agent.guard("payments")
    def charge(amount: int) -> int:
        return amount

    @agent.limit(lambda tenant: tenant, cost=50)
    def report(tenant: str) -> str:
        return tenant

    assert charge(5) == 5
    assert report("acme") == "acme"
    with pytest.raises(Refused, match="requests"):
        report("acme")


def test_wrong_use_raises_at_once(agent: blocking.Agent):
    arguments: list[tuple[Any, ...]] = [(7,), ("acme", 0), ("acme", 1.5)]
    for wrong in arguments:
        with pytest.raises(Misconfigured):
            agent.admit_request(*wrong)
    with pytest.raises(Misconfigured, match="wait_s"):
        agent.admit_request("acme", wait_s=float("nan"))

    async def on_a_loop() -> None:
        agent.admit_request("acme")

    with pytest.raises(Misconfigured, match="event loop"):
        asyncio.run(on_a_loop())


async def test_a_coroutine_of_any_loop_can_ask_too(settings: AgentSettings):
    agent = blocking.Agent(settings=settings)
    assert (await agent.aadmit_request("acme")).allowed
    assert agent.mode is Mode.SHARED
    tasks = [asyncio.create_task(agent.aadmit_request("acme", 10)) for _ in range(4)]
    assert all(decision.allowed for decision in await asyncio.gather(*tasks))
    await asyncio.to_thread(agent.stop)


def test_an_answer_that_is_not_received_is_undone(agent: blocking.Agent):
    """The race between a caller that gives up and an answer on its way has no third outcome."""
    inner = agent._started()
    undone: list[str] = []
    release = asyncio.Event()

    async def answered_late() -> str:
        await release.wait()
        return "answer"

    future = submit(inner, answered_late, undone.append)
    assert future is not None
    assert future.cancel()
    inner.loop.call_soon_threadsafe(release.set)
    assert wait_until(lambda: undone) == ["answer"]


def test_a_frozen_redis_blocks_no_thread(tmp_path: Path, valkey: Valkey, monkeypatch: pytest.MonkeyPatch):
    with redis.Redis.from_url(valkey.url) as client:
        publish(client, RULES, revision=3)
    with blocking.Agent(settings=AgentSettings(redis_url=valkey.url, server="s", state_dir=None)) as agent:
        agent.admit_request("acme")
        monkeypatch.setattr(threads, "LATE_S", 1.0)
        valkey.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert agent.admit_request("acme").allowed
            with agent.call("payments"):
                pass
            assert time.monotonic() - began < PATIENCE_S  # without a deadline it would be for ever
        finally:
            valkey.process.send_signal(signal.SIGCONT)


def test_a_loop_that_hangs_blocks_no_thread(agent: blocking.Agent, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "LATE_S", 1.0)
    hanging = threading.Event()
    agent._started().loop.call_soon_threadsafe(hanging.wait, 10)
    began = time.monotonic()
    try:
        decision = agent.admit_request("acme")
        assert time.monotonic() - began < 9  # it hangs for ten
        assert (decision.allowed, decision.mode, agent.late) == (True, Mode.LOCAL, 1)
    finally:
        hanging.set()


def test_a_forked_process_starts_an_agent_of_its_own(limits: redis.Redis, redis_url: str, tmp_path: Path):
    publish(limits, RULES, revision=3)
    with gateway_running() as gateway:
        gateway.publish(RULES, revision=3)
        settings = AgentSettings(
            redis_url=redis_url, url=gateway.url, token="fb_sel_secret", server="shop-1", state_dir=tmp_path
        )
        with blocking.Agent(settings=settings) as agent:
            assert agent.admit_request("acme", 10).allowed
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                # pytest is here as well: nothing but this may happen, and no return.
                try:
                    decision = agent.admit_request("acme", 40)
                    again = agent.admit_request("acme")
                    answer = [decision.allowed, decision.mode, decision.server, again.allowed]
                    os.write(writer, json.dumps(answer).encode())
                    agent.stop()
                finally:
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            allowed, mode, server, over = json.loads(os.read(reader, 4096))
            os.close(reader)
            os.close(writer)
            assert status == 0
            # One limit for both, though neither knows the other.
            assert (allowed, mode, over) == (True, Mode.SHARED, False)
            assert server == f"shop-1-{child}"
            assert not agent.admit_request("acme").allowed  # the parent's own connection is whole
        assert {beat.server for beat in gateway.beats} == {"shop-1", f"shop-1-{child}"}
        assert len({beat.boot for beat in gateway.beats}) == 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_sign_off(
    limits: redis.Redis, redis_url: str, tmp_path: Path, method: str
):
    publish(limits, RULES, revision=3)
    with gateway_running() as gateway:
        gateway.publish(RULES, revision=3)
        script = tmp_path / "job.py"
        script.write_text(f"""
import logging
import multiprocessing
from fuseboard import AgentSettings, blocking

settings = AgentSettings(redis_url={redis_url!r}, url={gateway.url!r}, token="fb_sel_secret")
agent = blocking.Agent(settings=settings)
# On a busy machine, a child is not connected at first, and warns.
logging.disable(logging.WARNING)

def work():
    assert agent.admit_request("acme").allowed

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=work) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
""")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
    last = {beat.server: beat.leaving for beat in gateway.beats}
    assert len(last) == 2
    assert all(last.values())


@pytest.mark.parametrize("redis_is", ["gone", "there"])
def test_a_process_that_forgets_to_stop_it_ends_at_once(settings: AgentSettings, redis_is: str):
    url = settings.redis_url if redis_is == "there" else "redis://127.0.0.1:1/0"
    script = f"""
import time
from fuseboard import AgentSettings, blocking
agent = blocking.Agent(settings=AgentSettings(redis_url={url!r}, state_dir=None, server="x"))
print(agent.admit_request("acme").allowed, flush=True)
with agent.call("payments"): pass
print(time.monotonic())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    allowed, ended = done.stdout.split()
    assert (allowed, done.returncode) == ("True", 0)
    assert "Traceback" not in done.stderr
    assert time.monotonic() - float(ended) < 15


def test_an_interrupted_wait_gives_back_what_was_on_its_way(limits: redis.Redis, settings: AgentSettings):
    publish(limits, RULES, revision=4)
    script = f"""
import os, signal, threading
from fuseboard import AgentSettings, blocking, Refused
agent = blocking.Agent(settings=AgentSettings(redis_url={settings.redis_url!r}, state_dir=None, server="x"))
# Whoever runs these tests in the background of a shell has the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
agent.start()
held = agent.admit_call("single")
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    agent.admit_call("single", wait_s=30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
agent.give_back(held)
with agent.call("single", wait_s=20):
    print("free", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90)
    assert done.stdout.split() == ["interrupted", "free"], done.stderr
