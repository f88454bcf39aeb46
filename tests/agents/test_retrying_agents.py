"""``retrying`` and ``retry`` of real agents, on loops and in threads."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from fuseboard import Agent, Misconfigured, Refused, blocking
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy
from fuseboard.contract.protection import Bulkhead, CallProtection, Retry
from fuseboard.contract.sync import SyncRequest, SyncResponse
from fuseboard.contract.words import Jitter
from fuseboard.reporting.heartbeat import Exchange
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY

RETRY = Retry(base_ms=1, cap_ms=1, jitter=Jitter.NONE, floor_milli=0, budget_percent=100, idempotent=True)
TRIPS = BreakerPolicy(consecutive_failures=2, minimum_servers=1)
RULES = Policy(
    environment=POLICY.environment,
    default_tier=POLICY.default_tier,
    tiers=POLICY.tiers,
    dependencies=(
        Dependency(name="api", protection=CallProtection(retry=RETRY)),
        Dependency(name="fragile", breaker=TRIPS, protection=CallProtection(retry=RETRY)),
        Dependency(name="plain"),
    ),
)


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_with(tmp_path, RULES)


class Vendor:
    """Fails so often, and counts."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def answer(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionResetError("lost")
        return f"answer {self.calls}"


def outcomes(agent: Agent, dependency: str) -> tuple[int, int]:
    """Successes and failures, as the breaker counted them."""
    for counted in agent.counters.wire().dependencies:
        if counted.dependency == dependency:
            return counted.ok, counted.failure
    return 0, 0


async def use(agent: Agent, dependency: str, vendor: Vendor) -> str:
    async for attempt in agent.retrying(dependency):
        async with attempt:
            return vendor.answer()
    raise AssertionError


async def test_each_attempt_is_admitted_and_reported_by_itself(settings: AgentSettings):
    vendor = Vendor(1)
    async with Agent(settings=settings) as agent:
        async for attempt in agent.retrying("api", deadline_s=20):
            async with attempt as permit:
                assert permit.dependency == "api"
                assert vendor.answer() == "answer 2"
        assert outcomes(agent, "api") == (1, 1)
        totals = agent.retries.totals()["api"]
        assert (totals.first_calls, totals.retries, totals.helped) == (1, 1, 1)


async def test_no_retry_is_made_while_the_breaker_is_open(settings: AgentSettings):
    vendor = Vendor(9)
    async with Agent(settings=settings) as agent:
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await use(agent, "fragile", vendor)
            if not agent._runtime.admission.is_closed("fragile"):
                break
        assert not agent._runtime.admission.is_closed("fragile")
        assert vendor.calls == 2
        with pytest.raises(Refused):
            await use(agent, "fragile", vendor)
        assert vendor.calls == 2


async def test_a_decorated_function_is_retried(settings: AgentSettings):
    async with Agent(settings=settings) as agent:
        vendor, slow, plain = Vendor(1), Vendor(1), Vendor(1)

        @agent.retry("api", deadline_s=30)
        async def ask(question: str) -> str:
            """Ask."""
            return question + vendor.answer()

        @agent.retry("api")
        def ask_slowly() -> str:
            return slow.answer()

        @agent.retry("plain")
        async def ask_plainly() -> str:
            return plain.answer()

        assert ask.__doc__ == "Ask."
        assert await ask("? ") == "? answer 2"
        assert await asyncio.to_thread(ask_slowly) == "answer 2"
        with pytest.raises(ConnectionResetError):
            await ask_plainly()
        with pytest.raises(Misconfigured, match="generator"):

            @agent.retry("api")
            async def parts():
                yield 1

        with pytest.raises(Misconfigured, match="dependency"):
            agent.retry("not a name")


def test_a_blocking_agent_retries_in_threads_and_in_coroutines(settings: AgentSettings):
    with blocking.Agent(settings=settings) as agent:
        vendor = Vendor(1)
        for attempt in agent.retrying("api"):
            with attempt as permit:
                assert permit.dependency == "api"
                assert vendor.answer() == "answer 2"
        vendor = Vendor(1)

        @agent.retry("api")
        def ask() -> str:
            return vendor.answer()

        @agent.retry("api")
        async def ask_async() -> str:
            return vendor.answer()

        assert ask() == "answer 2"
        vendor = Vendor(1)
        assert asyncio.run(ask_async()) == "answer 2"

        async def loop() -> str:
            vendor = Vendor(1)
            async for attempt in agent.aretrying("api", deadline_s=30):
                async with attempt:
                    return vendor.answer()
            raise AssertionError

        assert asyncio.run(loop()) == "answer 2"
        totals = agent._started().retries.totals()["api"]
        assert (totals.first_calls, totals.retries, totals.helped) == (4, 4, 4)
        vendor = Vendor(9)
        with pytest.raises(ConnectionResetError) as caught:
            ask()
        assert "fuseboard: attempt" in " ".join(caught.value.__notes__)


async def test_the_caps_of_a_heartbeat_lower_the_floor(settings: AgentSettings):
    async with Agent(settings=settings) as agent:
        head = agent.configuration.snapshot.head
        response = SyncResponse(
            server_time_us=1, next_ms=10_000, live_servers=20, head=head, retry_caps={"api": 20}
        )
        request = SyncRequest(
            environment="production", service="shop", server="shop-1", boot="boot-1234", sequence=1,
            agent_version="0",
        )  # fmt: skip
        agent._runtime._adopt(Exchange(request=request, response=response, asked_ns=0, answered_ns=0), None)
        now = agent.retries.clock()
        assert agent.retries.floor_per_s("api", Retry(), now) == 0.02
        assert agent.retries.floor_per_s("api", Retry(), now + 31) == 0.5


async def test_a_heartbeat_reports_what_became_of_retries(settings: AgentSettings):
    async with Agent(settings=settings) as agent:
        assert await use(agent, "api", Vendor(1)) == "answer 2"
        (load,) = [load for load in agent._runtime._describe().protection if load.dependency == "api"]
        assert (load.first_calls, load.retries, load.helped, load.no_budget) == (1, 1, 1, 0)


async def test_no_retry_is_made_while_the_slots_are_taken(tmp_path: Path):
    slots = Bulkhead(max_concurrent=3)
    protection = CallProtection(retry=RETRY, bulkhead=slots)
    rules = msgspec.structs.replace(RULES, dependencies=(Dependency(name="api", protection=protection),))
    async with Agent(settings=settings_with(tmp_path, rules)) as agent:
        vendor = Vendor(9)
        others = [await agent.admit_call("api", tier=tier) for tier in ("critical", "optional")]
        async for attempt in agent.retrying("api"):
            async with attempt:
                pass
        # The slot of the attempt itself is free again when it has failed.
        assert agent.retries.capacity("api").saturation == pytest.approx(2 / 3)
        others.append(await agent.admit_call("api", tier="standard"))
        assert agent.retries.capacity("api").saturation == 1.0
        for permit in others[:1]:
            agent.give_back(permit)
        assert agent.retries.capacity("api").saturation == pytest.approx(2 / 3)
        with pytest.raises(Refused):
            await use(agent, "api", vendor)
        assert vendor.calls == 0
        for permit in others[1:]:
            agent.give_back(permit)
