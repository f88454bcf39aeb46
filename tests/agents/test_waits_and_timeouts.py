"""C.11: every integration can wait, and the dependency's timeout bounds a call."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import requests

from fuseboard import Agent, Subject, blocking
from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.request_admission import RequestAdmission
from fuseboard.agent_api import threads
from fuseboard.contract.policy import BreakerPolicy, Dependency, Limit, Policy, TenantRecord
from fuseboard.contract.words import Algorithm, Outcome
from fuseboard.errors import Misconfigured, Refused
from fuseboard.integrations import asgi, wsgi
from fuseboard.integrations.httpx import BlockingGuardedTransport, GuardedTransport
from fuseboard.integrations.requests import GuardedAdapter
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY

pytestmark = pytest.mark.both_loops

#: One call per tenth of a second.
PACED = Limit(name="paced", limit=10, window_ms=1000, burst=1, algorithm=Algorithm.TOKEN_BUCKET)
SHORT = Policy(
    environment=POLICY.environment,
    default_tier="free",
    tiers=(msgspec.structs.replace(POLICY.tiers[0], name="free", quotas=(PACED,)),),
    dependencies=(
        Dependency(name="payments", timeout_ms=50, breaker=BreakerPolicy(slow_ms=10_000)),
        Dependency(name="paced", timeout_ms=5_000, vendor_limits=(PACED,)),
    ),
)


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_with(tmp_path, SHORT)


def respond(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200)


class TestTimeout:
    async def test_an_async_call_is_cancelled_at_the_timeout_of_its_dependency(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            reports: list[Outcome] = []
            agent.report = lambda permit, outcome, *rest, **more: reports.append(outcome)  # type: ignore[method-assign]

            @agent.guard("payments")
            async def hang() -> None:
                await asyncio.Event().wait()

            with pytest.raises(TimeoutError):
                await hang()
            assert reports == [Outcome.FAILURE]

    async def test_a_dependency_that_is_not_registered_has_no_timeout(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent, agent.call("unknown") as permit:
            assert permit.timeout_s is None

    async def test_an_overrun_that_went_well_is_slow(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            permit = await agent.admit_call("payments")
            assert agent._is_slow(permit, 0.051)
            assert not agent._is_slow(permit, 0.05)

    async def test_an_asynchronous_call_of_a_blocking_agent_is_cancelled_too(self, settings: AgentSettings):
        """It had no timeout: an asynchronous Django view waited for its vendor without end."""
        agent = blocking.Agent(settings=settings)
        reports: list[Outcome] = []
        inner = await asyncio.to_thread(agent._started)
        inner.report = lambda permit, outcome, *rest, **more: reports.append(outcome)  # type: ignore[method-assign]

        async def hang() -> None:
            async with agent.acall("payments") as permit:
                assert permit.timeout_s == 0.05
                await asyncio.sleep(10)
                pytest.fail("the block was not cancelled")

        try:
            with pytest.raises(TimeoutError):
                await hang()
            assert reports == [Outcome.FAILURE]
            async with agent.acall("unknown") as permit:
                assert permit.timeout_s is None
        finally:
            await asyncio.to_thread(agent.stop)

    def test_a_blocking_call_gets_the_timeout_to_pass_on(self, settings: AgentSettings):
        with blocking.Agent(settings=settings) as agent, agent.call("payments") as permit:
            assert permit.timeout_s == agent.timeout_s("payments") == 0.05


class TestWait:
    async def test_asgi(self, settings: AgentSettings):
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async with Agent(settings=settings) as agent:
            for wait_s, statuses in ((0.0, {200, 429}), (5.0, {200})):
                guarded = asgi.FuseboardMiddleware(app, agent, lambda scope: "acme", wait_s=wait_s)
                async with httpx.AsyncClient(
                    transport=httpx.ASGITransport(guarded), base_url="http://shop"
                ) as client:
                    assert {(await client.get("/")).status_code for _ in range(3)} == statuses

    async def test_httpx(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            for wait_s in (0.0, 5.0):
                transport = GuardedTransport(
                    agent, dependency="paced", transport=httpx.MockTransport(respond), wait_s=wait_s
                )
                async with httpx.AsyncClient(transport=transport) as client:
                    calls = [client.get("http://vendor/") for _ in range(3)]
                    ended = await asyncio.gather(*calls, return_exceptions=True)
                assert any(isinstance(each, Refused) for each in ended) == (wait_s == 0)

    def test_code_that_blocks(self, settings: AgentSettings):
        with blocking.Agent(settings=settings) as agent:
            transport = BlockingGuardedTransport(
                agent, dependency="paced", transport=httpx.MockTransport(respond), wait_s=5
            )
            with httpx.Client(transport=transport) as client:
                assert [client.get("http://vendor/").status_code for _ in range(3)] == [200] * 3

            class Vendor(requests.adapters.BaseAdapter):
                def send(self, *given: Any, **named: Any) -> requests.Response:
                    answer = requests.Response()
                    answer.status_code = 200
                    return answer

                def close(self) -> None:
                    """Nothing is open."""

            session = requests.Session()
            session.mount("http://", GuardedAdapter(agent, dependency="paced", adapter=Vendor(), wait_s=5))
            assert [session.get("http://vendor/").status_code for _ in range(3)] == [200] * 3

            guarded = wsgi.FuseboardMiddleware(
                lambda environ, start: (start("200 OK", []), [b""])[1],
                agent,
                lambda environ: "acme",
                wait_s=5,
            )
            seen: list[str] = []
            environ = {"REQUEST_METHOD": "GET"}
            for _ in range(3):
                list(guarded(environ, lambda status, headers, error=None: seen.append(status)))  # type: ignore[arg-type,func-returns-value]
            assert seen == ["200 OK"] * 3

    def test_a_wrong_wait_is_an_error_at_the_start(self, settings: AgentSettings):
        agent = blocking.Agent(settings=settings)
        for make in (
            lambda: BlockingGuardedTransport(agent, dependency="paced", wait_s=-1),
            lambda: GuardedAdapter(agent, dependency="paced", wait_s=1e9),
            lambda: wsgi.FuseboardMiddleware(
                lambda environ, start: [], agent, lambda environ: "a", wait_s=-1
            ),
        ):
            with pytest.raises(Misconfigured):
                make()


class TestConfiguredWait:
    """``wait_ms`` of a tier and of a dependency is for callers that do not say how long they wait."""

    @pytest.fixture
    def patient(self, tmp_path: Path) -> AgentSettings:
        tiers = tuple(msgspec.structs.replace(tier, wait_ms=5_000) for tier in SHORT.tiers)
        dependencies = tuple(msgspec.structs.replace(each, wait_ms=5_000) for each in SHORT.dependencies)
        policy = msgspec.structs.replace(SHORT, tiers=tiers, dependencies=dependencies)
        return settings_with(tmp_path, policy)

    async def test_requests(self, patient: AgentSettings):
        async with Agent(settings=patient) as agent:
            for more in ({}, {"costs": {"tokens": 1}}, {"subject": Subject(ip="192.0.2.1")}):
                assert all([(await agent.admit_request("acme", **more)).allowed for _ in range(3)])
            # At one moment, of three that do not wait two are refused.
            asked = [agent.admit_request("impatient", wait_s=0) for _ in range(3)]
            assert sum(decision.allowed for decision in await asyncio.gather(*asked)) < 3

    async def test_a_wait_costs_nothing_while_nobody_waits(
        self, patient: AgentSettings, monkeypatch: pytest.MonkeyPatch
    ):
        """Each request and each call prepared a lane of its own, as soon as a wait was configured."""
        made: list[str] = []
        for each in (CallAdmission, RequestAdmission):

            def lane(
                self: object, owner: str, *rest: object, usual: Callable[..., object] = each.lane
            ) -> object:
                made.append(owner)
                return usual(self, owner, *rest)

            monkeypatch.setattr(each, "lane", lane)
        async with Agent(settings=patient) as agent:
            for tenant, wait_s in (("acme", None), ("initech", 5.0)):
                agent.configuration.snapshot.tenants.put(tenant, None)
                for _ in range(3):
                    assert (await agent.admit_call("payments", wait_s=wait_s)).decision.allowed
                # The first one of a tenant is allowed at once.
                assert (await agent.admit_request(tenant, wait_s=wait_s)).allowed
        assert [made.count(owner) for owner in ("payments", "acme", "initech")] == [1, 1, 1]

    async def test_calls(self, patient: AgentSettings):
        async with Agent(settings=patient) as agent:
            for more in ({}, {"tenant": "acme"}, {"costs": {"tokens": 1}}):
                for _ in range(3):
                    async with agent.call("paced", **more):
                        """Admitted."""
            asked = [agent.admit_call("paced", wait_s=0) for _ in range(3)]
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert any(isinstance(each, Refused) for each in ended)

    async def test_middleware_and_clients(self, patient: AgentSettings):
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async with Agent(settings=patient) as agent:
            for options, refuses in (({}, False), ({"wait_s": 0}, True)):
                guarded = asgi.FuseboardMiddleware(app, agent, lambda scope: "acme", **options)
                async with httpx.AsyncClient(
                    transport=httpx.ASGITransport(guarded), base_url="http://shop"
                ) as client:
                    asked = [client.get("/") for _ in range(4)]
                    statuses = {answer.status_code for answer in await asyncio.gather(*asked)}
                assert (429 in statuses) == refuses

    def test_threads_wait_as_long_as_the_configuration_says(
        self, patient: AgentSettings, monkeypatch: pytest.MonkeyPatch
    ):
        # Each wait is longer: a thread gives up on an agent that is later than it must be.
        monkeypatch.setattr(threads, "LATE_S", 0.01)

        async def coroutines() -> None:
            assert (await agent.aadmit_request("acme")).allowed
            async with agent.acall("paced"):
                """Admitted."""

        with blocking.Agent(settings=patient) as agent:
            for _ in range(3):
                assert agent.admit_request("acme").allowed
                with agent.call("paced"):
                    """Admitted."""
                asyncio.run(coroutines())
            assert agent.late == 0

    @pytest.fixture
    def two_tiers(self, tmp_path: Path) -> AgentSettings:
        """Tenants of tier free do not wait, those of tier batch wait for a minute."""
        free = SHORT.tiers[0]
        batch = msgspec.structs.replace(free, name="batch", wait_ms=60_000)
        return settings_with(tmp_path, msgspec.structs.replace(SHORT, tiers=(free, batch)))

    async def test_a_wait_is_that_of_the_tenants_own_tier(self, two_tiers: AgentSettings):
        async with Agent(settings=two_tiers) as agent:
            for tenant, tier in (("acme", "free"), ("initech", "batch"), ("nobody", None)):
                record = TenantRecord(tier=tier) if tier else None
                agent.configuration.snapshot.tenants.put(tenant, record)
            waits = {
                tenant: agent.longest_wait_s(tenant=tenant)
                for tenant in ("acme", "initech", "nobody", "not-met", "", None)
            }
        assert waits == {"acme": 0, "initech": 60, "nobody": 0, "not-met": 60, "": 0, None: 0}

    def test_a_loop_that_hangs_delays_nobody_by_the_wait_of_another_tier(
        self, two_tiers: AgentSettings, monkeypatch: pytest.MonkeyPatch
    ):
        """Every thread waited 61 s, because tenants of one tier wait for a minute."""
        monkeypatch.setattr(threads, "LATE_S", 0.05)
        hanging = threading.Event()
        with blocking.Agent(settings=two_tiers) as agent:
            inner = agent._started()
            inner.configuration.snapshot.tenants.put("acme", TenantRecord(tier="free"))
            inner.loop.call_soon_threadsafe(hanging.wait, 60)
            try:
                assert agent.admit_request("acme").allowed
                assert agent.admit_request(None, subject=Subject(ip="192.0.2.1")).allowed
                assert asyncio.run(agent.aadmit_request("acme")).allowed
                assert agent.late == 3
                assert not hanging.is_set()
            finally:
                hanging.set()

    async def test_it_is_not_the_wait_of_another_tier_or_dependency(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            asked = [agent.admit_request("acme") for _ in range(3)]
            assert sum(decision.allowed for decision in await asyncio.gather(*asked)) < 3
            assert agent.longest_wait_s("unknown") == 0
