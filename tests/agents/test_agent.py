"""A whole agent, as an application uses it, with real servers and without any."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

import fuseboard
from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, AgentSettings, Misconfigured, Mode, Outcome, Reason, Refused
from fuseboard.agent import INVALID_TENANT
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency, Limit, TenantRecord, Tier
from fuseboard.contract.words import BreakerState, ConfigSource, ConfigStatus, FailurePolicy
from tests.agents.gateways import FakeGateway, Reply, gateway_running
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY
from tests.waiting import eventually

NOWHERE = "redis://127.0.0.1:1/0"
TWO_A_MINUTE = Limit(
    name="requests", limit=2, window_ms=60_000, burst=2, failure_policy=FailurePolicy.LOCAL_SHARE
)
STRICT = msgspec.structs.replace(POLICY, tiers=(Tier(name="free", quotas=(TWO_A_MINUTE,)), POLICY.tiers[1]))


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with gateway_running() as running:
        running.publish(POLICY, revision=7)
        yield running


def settings(redis_url: str, tmp_path: Path, **given: Any) -> AgentSettings:
    given.setdefault("token", "fb_sel_secret")
    return AgentSettings(
        redis_url=redis_url, server="shop-1", service="shop", state_dir=tmp_path / "state", **given
    )


@asynccontextmanager
async def agent_at(redis_url: str, tmp_path: Path, **given: Any) -> AsyncIterator[Agent]:
    async with Agent(settings=settings(redis_url, tmp_path, **given)) as agent:
        yield agent


class TestStart:
    async def test_the_gateways_configuration_decides_the_first_request(
        self, limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path
    ):
        gateway.publish(STRICT, revision=7)
        async with agent_at(redis_url, tmp_path, url=gateway.url) as agent:
            assert agent.mode is Mode.SHARED
            decisions = [await agent.admit_request("acme") for _ in range(3)]
            assert [decision.allowed for decision in decisions] == [True, True, False]
            assert (decisions[2].reason, decisions[2].revision) == (Reason.QUOTA, 7)
            assert agent.configuration.applied.source is ConfigSource.HTTP

    async def test_without_a_gateway_redis_answers(self, limits: redis.Redis, redis_url: str, tmp_path: Path):
        publish(limits, STRICT, revision=5)
        async with agent_at(redis_url, tmp_path, url="http://127.0.0.1:1") as agent:
            assert agent.configuration.applied.source is ConfigSource.REDIS
            assert (await agent.admit_request("acme")).revision == 5

    async def test_with_everything_down_the_disk_answers_and_decisions_stay_as_they_were(
        self, limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path
    ):
        gateway.publish(STRICT, revision=7)
        gateway.tenants = {"late-payer": TenantRecord(tier="free", suspended=True)}
        gateway.next_ms = 50
        async with agent_at(redis_url, tmp_path, url=gateway.url) as agent:
            await agent.admit_request("late-payer")
            await eventually(lambda: "late-payer" in agent.configuration.snapshot.tenants)
        files = list((tmp_path / "state").iterdir())
        assert [file.name for file in files] == ["production@shop.config"]

        async with agent_at(NOWHERE, tmp_path, url="http://127.0.0.1:1") as agent:
            assert agent.configuration.applied.source is ConfigSource.DISK
            decisions = [await agent.admit_request("acme") for _ in range(3)]
            assert [decision.allowed for decision in decisions] == [True, True, False]
            assert decisions[0].mode is Mode.LOCAL
            assert decisions[0].revision == 7

    async def test_with_everything_down_and_no_disk_the_bootstrap_file_answers(self, tmp_path: Path):
        path = tmp_path / "bootstrap.json"
        path.write_bytes(b'{"policy":' + msgspec.json.encode(STRICT) + b"}")
        async with agent_at(NOWHERE, tmp_path, bootstrap_file=path) as agent:
            assert agent.configuration.applied.source is ConfigSource.BOOTSTRAP
            assert [(await agent.admit_request("acme")).allowed for _ in range(3)] == [True, True, False]

    async def test_with_nothing_at_all_everything_is_allowed_without_waiting_for_the_gateway(
        self, tmp_path: Path, gateway: FakeGateway
    ):
        gateway.delay_s = 30  # a gateway that accepts and does not answer
        began = time.monotonic()
        async with agent_at(NOWHERE, tmp_path, url=gateway.url) as agent:
            assert time.monotonic() - began < gateway.delay_s
            assert (await agent.admit_request("acme")).allowed
            async with agent.call("payments"):
                """Not guarded by anything but this server's own breaker."""
            assert agent.configuration.applied.source is ConfigSource.BUILT_IN
            began = time.monotonic()
        assert time.monotonic() - began < gateway.delay_s

    @pytest.mark.timeout(60)
    async def test_start_waits_for_the_first_answer_of_a_slow_redis(self, valkey: Valkey, tmp_path: Path):
        assert valkey.process is not None
        valkey.process.send_signal(signal.SIGSTOP)
        starting = asyncio.create_task(Agent(settings=settings(valkey.url, tmp_path)).__aenter__())
        await asyncio.sleep(0)
        assert not starting.done()
        valkey.process.send_signal(signal.SIGCONT)
        agent = await starting
        assert agent.mode is Mode.SHARED
        await agent.stop()

    @pytest.mark.timeout(60)
    async def test_start_does_not_wait_for_a_redis_that_refuses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("fuseboard.runtime.CONNECT_S", 3600.0)
        async with agent_at(NOWHERE, tmp_path) as agent:
            assert agent.mode is Mode.LOCAL

    async def test_a_stopped_agent_can_be_started_again(
        self, limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path
    ):
        agent = Agent(settings=settings(redis_url, tmp_path, url=gateway.url))
        for _ in range(2):
            async with agent:
                await agent.start()  # once more changes nothing
                assert (await agent.admit_request("acme")).allowed
        boots = {beat.boot for beat in gateway.beats}
        assert len(boots) == 2
        assert sum(beat.leaving for beat in gateway.beats) == 2

    def test_an_application_that_forgets_to_stop_it_still_ends(self, tmp_path: Path):
        script = f"""
import asyncio, fuseboard
async def main():
    agent = fuseboard.Agent(settings=fuseboard.AgentSettings(redis_url={NOWHERE!r}, state_dir=None,
                            url="http://127.0.0.1:1", token="x"))
    await agent.start()
    print((await agent.admit_request("acme")).allowed)
asyncio.run(main())
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == "True"
        assert done.returncode == 0, done.stderr


class TestOneEdit:
    async def test_an_edit_reaches_the_next_decision_and_is_acknowledged(
        self, limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path
    ):
        publish(limits, POLICY, revision=7)
        gateway.next_ms = 500
        async with agent_at(redis_url, tmp_path, url=gateway.url) as agent:
            publish(limits, STRICT, revision=8)
            gateway.publish(STRICT, revision=8)
            await eventually(lambda: agent.configuration.snapshot.head.revision == 8)
            assert (await agent.admit_request("acme")).revision == 8
            await eventually(lambda: gateway.beats[-1].applied.revision == 8)
            assert gateway.beats[-1].applied.status is ConfigStatus.APPLIED

    async def test_a_pod_hears_which_budgets_were_cleared(
        self, limits: redis.Redis, redis_url: str, tmp_path: Path
    ):
        async with agent_at(redis_url, tmp_path):
            await eventually(lambda: limits.publish(keys.budget_channel("production"), b"unknown") == 1)

    async def test_with_redis_gone_the_gateway_alone_brings_it(self, gateway: FakeGateway, tmp_path: Path):
        gateway.next_ms = 50
        gateway.live_servers = 2
        async with agent_at(NOWHERE, tmp_path, url=gateway.url) as agent:
            assert agent.configuration.live_servers == 2
            gateway.publish(STRICT, revision=8)
            await eventually(lambda: agent.configuration.snapshot.head.revision == 8)
            # A limit of 2 shared by two servers, neither of which can ask Redis.
            assert [(await agent.admit_request("acme")).allowed for _ in range(2)] == [True, False]

    async def test_a_poisoned_policy_is_refused_reported_and_healed(
        self, gateway: FakeGateway, tmp_path: Path
    ):
        gateway.next_ms = 50
        async with agent_at(NOWHERE, tmp_path, url=gateway.url) as agent:
            gateway.publish(msgspec.structs.replace(POLICY, default_tier="nobody"), revision=8)
            await eventually(lambda: gateway.beats[-1].applied.status is ConfigStatus.REJECTED)
            assert "default_tier" in gateway.beats[-1].applied.error
            assert agent.configuration.snapshot.head.revision == 7
            gateway.publish(STRICT, revision=9)
            await eventually(lambda: gateway.beats[-1].applied.revision == 9)
            assert gateway.beats[-1].applied.status is ConfigStatus.APPLIED

    async def test_a_refused_token_leaves_the_configuration_in_force(
        self, gateway: FakeGateway, tmp_path: Path
    ):
        gateway.next_ms = 50
        async with agent_at(NOWHERE, tmp_path, url=gateway.url) as agent:
            gateway.always = Reply(status=401)
            beats = len(gateway.beats)
            await eventually(lambda: len(gateway.beats) > beats)
            assert (await agent.admit_request("acme")).revision == 7

    async def test_a_refetch_of_many_tenants_is_acknowledged_when_it_is_whole(
        self, gateway: FakeGateway, tmp_path: Path
    ):
        names = [f"tenant-{number}" for number in range(2500)]
        gateway.next_ms = 10_000
        async with agent_at(NOWHERE, tmp_path, url=gateway.url) as agent:
            for name in names:
                agent.configuration.snapshot.tenants.put(name, TenantRecord(tier="free"))
            gateway.tenants = dict.fromkeys(names, TenantRecord(tier="unlimited"))
            gateway.refetch = True
            gateway.publish(STRICT, revision=9)
            agent._runtime._sync.heartbeat_soon()
            await eventually(lambda: agent.configuration.applied.revision == 9)
            assert {agent.configuration.snapshot.quotas_of(name).tier for name in names} == {"unlimited"}
            assert len(gateway.beats) < 10


class TestRequests:
    async def test_an_unknown_tenant_gets_the_default_tier_and_is_counted(
        self, limits: redis.Redis, redis_url: str, tmp_path: Path
    ):
        publish(limits, STRICT, revision=1, tenants={"acme": TenantRecord(tier="unlimited")})
        async with agent_at(redis_url, tmp_path) as agent:
            await agent.admit_request("acme")
            assert agent.counters.unknown_tenants == 0
            assert (await agent.admit_request("ghost")).allowed
            assert agent.counters.unknown_tenants == 1

    @pytest.mark.parametrize("tenant", ["", "x" * 10_000, "new\nline", "\ud800"])
    async def test_an_impossible_tenant_neither_fails_nor_escapes_the_limit(
        self, tmp_path: Path, tenant: str
    ):
        path = tmp_path / "bootstrap.json"
        path.write_bytes(b'{"policy":' + msgspec.json.encode(STRICT) + b"}")
        async with agent_at(NOWHERE, tmp_path, bootstrap_file=path) as agent:
            decisions = [await agent.admit_request(tenant) for _ in range(3)]
            assert [decision.allowed for decision in decisions] == [True, True, False]
            assert decisions[0].tenant == INVALID_TENANT

    @pytest.mark.parametrize(
        ("tenant", "cost"), [(None, 1), (7, 1), (b"acme", 1), ("acme", 0), ("acme", 1.5), ("acme", True)]
    )
    async def test_wrong_use_raises_at_once(self, tmp_path: Path, tenant: Any, cost: Any):
        async with agent_at(NOWHERE, tmp_path) as agent:
            with pytest.raises(Misconfigured):
                await agent.admit_request(tenant, cost)

    async def test_before_the_start_it_says_what_to_do_and_after_the_stop_it_allows(self, tmp_path: Path):
        agent = Agent(settings=settings(NOWHERE, tmp_path))
        with pytest.raises(Misconfigured, match="start"):
            await agent.admit_request("acme")
        async with agent:
            permit = await agent.admit_call("payments")
        assert (await agent.admit_request("acme")).allowed
        agent.report(permit, Outcome.OK)
        async with agent.call("payments"):
            """Requests still in flight at shutdown are not failed by it."""

    async def test_use_from_another_loop_raises(self, tmp_path: Path):
        async with agent_at(NOWHERE, tmp_path) as agent:
            raised: list[BaseException] = []

            def elsewhere() -> None:
                try:
                    asyncio.run(agent.admit_request("acme"))
                except BaseException as error:
                    raised.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert isinstance(raised[0], Misconfigured)

    async def test_a_defect_of_the_agent_allows_the_request_and_is_logged_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
    ):
        async with agent_at(NOWHERE, tmp_path) as agent:

            async def broken(*_: object, **__: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(agent._runtime.admission, "admit_request", broken)
            monkeypatch.setattr(agent._runtime.admission, "admit_call", broken)
            for _ in range(3):
                assert (await agent.admit_request("acme")).allowed
                async with agent.call("payments"):
                    """Allowed as well."""
            assert agent.defects == 6
            assert caplog.text.count("agent.defect") == 1


class TestCalls:
    async def test_failures_open_the_breaker_and_the_gateway_hears_of_it_at_once(
        self, limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path
    ):
        gateway.next_ms = 60_000
        async with agent_at(redis_url, tmp_path, url=gateway.url) as agent:
            refused = None
            for _ in range(BREAKER.consecutive_failures + 1):
                try:
                    async with agent.call("payments"):
                        raise TimeoutError
                except TimeoutError:
                    continue
                except Refused as refusal:
                    refused = refusal
            await eventually(lambda: any(view.state is BreakerState.OPEN for view in agent.views()))
            if refused is None:
                with pytest.raises(Refused) as caught:
                    await agent.admit_call("payments")
                refused = caught.value
            assert refused.decision.reason is Reason.BREAKER_OPEN

            def heard() -> bool:
                views = gateway.beats[-1].breakers
                return any(
                    view.dependency == "payments" and view.state is BreakerState.OPEN for view in views
                )

            await eventually(heard)

    @pytest.mark.parametrize(
        ("error", "given", "outcome"),
        [
            (TimeoutError, (), Outcome.FAILURE),
            (KeyError, (), Outcome.FAILURE),
            (KeyError, (LookupError,), Outcome.NEUTRAL),
            (asyncio.CancelledError, (), Outcome.NEUTRAL),
        ],
    )
    async def test_how_the_block_ends_is_how_the_call_ended(self, tmp_path: Path, error, given, outcome):
        async with agent_at(NOWHERE, tmp_path) as agent:
            with pytest.raises(error):
                async with agent.call("payments", neutral=given):
                    raise error
            assert _outcomes(agent) == {outcome: 1}

    async def test_a_success_beyond_the_policys_limit_is_slow_and_counts_once(self, tmp_path: Path):
        async with agent_at(NOWHERE, tmp_path) as agent:
            permit = await agent.admit_call("payments")
            agent.report(permit, Outcome.OK, elapsed_s=10.001)
            agent.report(permit, Outcome.FAILURE)
            agent.report(await agent.admit_call("payments"), Outcome.OK, elapsed_s=9.999)
            agent.report(await agent.admit_call("payments"), Outcome.NEUTRAL, elapsed_s=0.001)
            assert _outcomes(agent) == {Outcome.SLOW: 1, Outcome.OK: 1, Outcome.NEUTRAL: 1}
            (payments,) = agent.counters.wire().dependencies
            assert payments.latency == (*[0] * 11, 1, 1)

    @pytest.mark.parametrize("name", ["", "two words", "x" * 65, "a/b", "new\n"])
    async def test_an_invalid_dependency_name_raises_at_once(self, tmp_path: Path, name: str):
        async with agent_at(NOWHERE, tmp_path) as agent:
            with pytest.raises(Misconfigured, match="dependency"):
                await agent.admit_call(name)


def _outcomes(agent: Agent) -> dict[Outcome, int]:
    (counted,) = agent.counters.wire().dependencies
    totals = {outcome: getattr(counted, outcome.value) for outcome in Outcome}
    return {outcome: count for outcome, count in totals.items() if count}


class TestOutage:
    async def test_the_gateway_hears_of_local_mode_within_moments_and_of_the_way_back(
        self, valkey: Valkey, gateway: FakeGateway, tmp_path: Path
    ):
        gateway.next_ms = 60_000
        with redis.Redis.from_url(valkey.url) as client:
            publish(client, POLICY, revision=7)
        async with agent_at(valkey.url, tmp_path, url=gateway.url) as agent:
            await eventually(lambda: gateway.beats[-1].mode is Mode.SHARED)
            valkey.stop()
            await eventually(lambda: gateway.beats[-1].mode is Mode.LOCAL)
            assert gateway.beats[-1].mode_cause
            assert (await agent.admit_request("acme")).mode is Mode.LOCAL
            valkey.start()
            await eventually(lambda: gateway.beats[-1].mode is Mode.SHARED)


def test_importing_the_contract_does_not_load_the_agent():
    script = (
        "import sys, json, fuseboard.contract.sync;"
        "print(json.dumps([name for name in ('fuseboard.agent', 'redis', 'httpx') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_everything_public_can_be_imported():
    for name in fuseboard.__all__:
        assert getattr(fuseboard, name) is not None
    with pytest.raises(AttributeError):
        _ = fuseboard.nothing
    assert Dependency(name="payments").breaker.slow_ms == 10_000
