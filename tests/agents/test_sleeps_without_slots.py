"""Nothing sleeps while it holds a slot: each sleep of the agent is watched, on every path that waits.

A call that waits for another attempt, or for a limit, would otherwise keep others from working.
"""

import ast
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import httpx2
import pytest
import requests
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse

import fuseboard
from fuseboard import Agent, Default, blocking
from fuseboard.admission.call_guard import CallGuard
from fuseboard.contract.policy import Dependency, Policy
from fuseboard.contract.protection import Bulkhead, CallProtection, Retry
from fuseboard.contract.words import Jitter
from fuseboard.integrations import httpx as for_httpx
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.integrations.requests import GuardedAdapter
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.guarded_pods import Make, admitted, answer_all, guard_of
from tests.agents.servers import POLICY

#: The parts of the agent that run within a call.
PACKAGES = ("admission", "agent_api", "batching", "calling", "integrations", "protection")
#: Where they sleep. A new place needs a scenario below, which shows that it holds no slot.
PLACES = {
    ("admission/admission.py", "_waited", "sleep"): "a patient call",
    ("calling/waits.py", "pause", "sleep"): "a retry",
    ("calling/waits.py", "block", "sleep"): "a retry in a thread",
    ("agent_api/retrying.py", "__anext__", "pause"): "agent.retrying",
    ("agent_api/retrying.py", "__next__", "block"): "blocking.Agent.retrying",
    ("integrations/guarded_request.py", "paused", "pause"): "an async transport, or a client middleware",
    ("integrations/guarded_request.py", "slept", "block"): "a blocking transport, or an adapter",
}
RETRY = Retry(base_ms=20, cap_ms=20, jitter=Jitter.NONE, budget_percent=100, idempotent=True)
PROTECTED = CallProtection(bulkhead=Bulkhead(max_concurrent=3), retry=RETRY)
RULES = Policy(
    environment=POLICY.environment,
    default_tier=POLICY.default_tier,
    tiers=POLICY.tiers,
    dependencies=(Dependency(name="api", protection=PROTECTED),),
)


class Watch:
    """How many calls held a slot at each sleep of the parts above."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.guard: CallGuard | None = None
        #: The agent's loop, if calls are made in other threads.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.held: list[tuple[str, int]] = []
        sleep, block = asyncio.sleep, time.sleep

        async def asleep(delay: float, *rest: Any) -> Any:
            self.note(delay, sys._getframe(1))
            return await sleep(delay, *rest)

        def blocked(delay: float) -> None:
            self.note(delay, sys._getframe(1))
            block(delay)

        monkeypatch.setattr(asyncio, "sleep", asleep)
        monkeypatch.setattr(time, "sleep", blocked)

    def note(self, delay: float, frame: FrameType) -> None:
        module = frame.f_globals["__name__"]
        if delay > 0 and module.startswith(tuple(f"fuseboard.{package}." for package in PACKAGES)):
            assert self.guard is not None
            assert self.guard.bulkhead is not None
            if self.loop is not None:
                # What the thread sent to the loop before is done there first: the report of its attempt.
                asyncio.run_coroutine_threadsafe(_nothing(), self.loop).result(10)
            self.held.append((module, self.guard.bulkhead.in_flight))


async def _nothing() -> None:
    """Runs after all that the loop was asked to do before."""


class Vendor:
    """Fails once, then answers."""

    def __init__(self) -> None:
        self.calls = 0

    def answer(self) -> str:
        self.calls += 1
        if self.calls == 1:
            raise ConnectionResetError("lost")
        return "fine"

    @property
    def status(self) -> int:
        self.calls += 1
        return 503 if self.calls == 1 else 200


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_with(tmp_path, RULES)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def sleeps() -> set[tuple[str, str, str]]:
    """File, function and name of each call that waits for a time."""
    root, found = Path(fuseboard.__file__).parent, set()
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            source = path.read_text()
            waits = {"sleep", "wait_for"}
            # The words of ``pauses`` mean other things elsewhere.
            if "from fuseboard.calling.waits import" in source:
                waits |= {"pause", "block"}
            for function in ast.walk(ast.parse(source)):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for name in _called(function) & waits:
                        found.add((str(path.relative_to(root)), function.name, name))
    return found


def _called(function: ast.AST) -> set[str]:
    called = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or (node.args and _is_zero(node.args[0])):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        called.add(name)
    return called


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def test_every_place_that_sleeps_has_a_scenario() -> None:
    assert sleeps() == set(PLACES)


# A patient call


def test_a_patient_call_holds_no_slot_while_it_waits_for_a_limit(make_pod: Make, watch: Watch) -> None:
    pod = make_pod()
    watch.guard = guard_of(pod)
    call = pod.call(wait_s=3.0)
    pod.answer("closed", 1, cooling=True)
    assert call.waits
    pod.pass_time(1.2)
    answer_all(pod)
    assert call.permit is not None
    assert watch.held == [("fuseboard.admission.admission", 0)]


def test_a_patient_call_holds_no_slot_while_it_waits_for_a_probe(make_pod: Make, watch: Watch) -> None:
    pod = make_pod()
    watch.guard = guard_of(pod)
    call = pod.call(wait_s=3.0)
    pod.answer("half_open", 2, free=0)
    for _ in range(3):
        pod.pass_time(0.03)
        if pod.store.asked:
            pod.answer("half_open", 2, free=0)
    assert call.waits
    assert watch.held
    assert {held for _, held in watch.held} == {0}


def test_a_call_that_holds_a_slot_is_noticed(make_pod: Make, watch: Watch) -> None:
    """The watch itself works: another call has a slot, and it cannot know whose it is."""
    pod = make_pod()
    watch.guard = guard_of(pod)
    admitted(pod, tier="standard")
    call = pod.call(wait_s=3.0)
    pod.answer("closed", 1, cooling=True)
    assert call.waits
    assert watch.held == [("fuseboard.admission.admission", 1)]


# Retries on an event loop


async def retrying(agent: Agent, vendor: Vendor) -> object:
    async for attempt in agent.retrying("api"):
        async with attempt:
            return vendor.answer()
    raise AssertionError


async def decorated(agent: Agent, vendor: Vendor) -> object:
    @agent.retry("api")
    async def ask() -> str:
        return vendor.answer()

    return await ask()


async def with_fallback(agent: Agent, vendor: Vendor) -> object:
    answer = await agent.fallback("api", [Default("none")]).run(lambda: retrying(agent, vendor))
    assert not answer.is_fallback
    return answer.value


async def in_tiers(agent: Agent, vendor: Vendor) -> object:
    return (await agent.gather_tiers(critical=[retrying(agent, vendor)])).critical[0]


async def over_httpx(agent: Agent, vendor: Vendor) -> object:
    inner = httpx.MockTransport(lambda request: httpx.Response(vendor.status, text="fine"))
    transport = for_httpx.GuardedTransport(agent, dependency="api", transport=inner, retry=True)
    async with httpx.AsyncClient(transport=transport) as client:
        return (await client.get("https://api.example/")).text


async def over_httpx2(agent: Agent, vendor: Vendor) -> object:
    inner = httpx2.MockTransport(lambda request: httpx2.Response(vendor.status, text="fine"))
    transport = for_httpx2.GuardedTransport(agent, dependency="api", transport=inner, retry=True)
    async with httpx2.AsyncClient(transport=transport) as client:
        return (await client.get("https://api.example/")).text


@pytest.mark.parametrize("use", [retrying, decorated, with_fallback, in_tiers, over_httpx, over_httpx2])
async def test_a_retry_holds_no_slot_while_it_waits(
    settings: AgentSettings, watch: Watch, use: Callable[[Agent, Vendor], Awaitable[object]]
) -> None:
    vendor = Vendor()
    async with Agent(settings=settings) as agent:
        watch.guard = agent._runtime.admission.guards.find("api")
        assert await use(agent, vendor) == "fine"
        assert vendor.calls == 2
        assert watch.held == [("fuseboard.calling.waits", 0)]


# Retries in threads


def blocking_retrying(agent: blocking.Agent, vendor: Vendor) -> object:
    for attempt in agent.retrying("api"):
        with attempt:
            return vendor.answer()
    raise AssertionError


def blocking_decorated(agent: blocking.Agent, vendor: Vendor) -> object:
    @agent.retry("api")
    def ask() -> str:
        return vendor.answer()

    return ask()


def over_blocking_httpx(agent: blocking.Agent, vendor: Vendor) -> object:
    inner = httpx.MockTransport(lambda request: httpx.Response(vendor.status, text="fine"))
    transport = for_httpx.BlockingGuardedTransport(agent, dependency="api", transport=inner, retry=True)
    with httpx.Client(transport=transport) as client:
        return client.get("https://api.example/").text


class Answers(BaseAdapter):
    def __init__(self, vendor: Vendor) -> None:
        super().__init__()
        self.vendor = vendor

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.request = self.vendor.status, request
        body = BytesIO(b"fine")
        response.raw = HTTPResponse(body=body, status=response.status_code, preload_content=False)
        return response

    def close(self) -> None:
        """There is nothing to close."""


def over_requests(agent: blocking.Agent, vendor: Vendor) -> object:
    with requests.Session() as session:
        adapter = GuardedAdapter(agent, dependency="api", adapter=Answers(vendor), retry=True)
        session.mount("https://", adapter)
        return session.get("https://api.example/").text


@pytest.mark.parametrize("use", [blocking_retrying, blocking_decorated, over_blocking_httpx, over_requests])
def test_a_retry_in_a_thread_holds_no_slot_while_it_waits(
    settings: AgentSettings, watch: Watch, use: Callable[[blocking.Agent, Vendor], object]
) -> None:
    vendor = Vendor()
    with blocking.Agent(settings=settings) as agent:
        inner = agent._agent_now()
        assert isinstance(inner, Agent)
        watch.guard, watch.loop = inner._runtime.admission.guards.find("api"), inner.loop
        assert use(agent, vendor) == "fine"
        assert vendor.calls == 2
        assert watch.held == [("fuseboard.calling.waits", 0)]
