"""The supported view of the inside of a running pod: it predicts decisions, and changes nothing."""

import pytest
import redis
from msgspec.structs import replace

from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.configuration.server_clock import ServerClock
from fuseboard.contract import keys
from fuseboard.contract.policy import ConfigHead, encode_policy, hash_of
from fuseboard.contract.words import ConfigSource, Mode, Outcome, Reason
from fuseboard.explain import dry_run
from fuseboard.explain.found_configuration import FoundConfiguration
from fuseboard.store import open_store
from fuseboard.store.single_store import SingleStore
from fuseboard.subject import NO_SUBJECT, ONE_CALL
from tests.agents.servers import POLICY, REQUESTS, TENANTS, Server, configured, running
from tests.waiting import PATIENCE_S, eventually

#: One call more per minute: no pause of the machine makes room. A lease would charge calls in advance, once
#: the test is quick enough for one.
SLOW = replace(REQUESTS, window_ms=3_600_000, lease_above=1_000_000_000)


async def test_the_expected_decision_is_the_next_one(limits: redis.Redis, redis_url: str):
    slow = replace(POLICY, tiers=(replace(POLICY.tiers[0], quotas=(SLOW,)), POLICY.tiers[1]))
    async with running(redis_url, configuration=configured(slow)) as server:
        inside = server.admission.inspect()
        for left in range(20, 0, -1):
            expected = await inside.request("acme", ONE_CALL, NO_SUBJECT)
            assert (expected.decision.allowed, expected.costs) == (True, {"requests": 1})
            assert expected.decision.limits[0].remaining == left
            assert (await server.admission.admit_request("acme")).allowed
        expected = await inside.request("acme", ONE_CALL, NO_SUBJECT)
        assert (expected.decision.allowed, expected.decision.rule) == (False, "requests")
        assert not (await server.admission.admit_request("acme")).allowed


async def test_an_open_breaker_is_expected_to_refuse(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        for _ in range(4):
            server.admission.report(await server.admission.admit_call("payments"), Outcome.FAILURE)
        key = "fb1:production:{d:payments}:breaker"
        await eventually(lambda: (limits.get(key) or b"").startswith(b"open"))
        expected = await server.admission.inspect().call("payments", ONE_CALL)
    assert expected.decision.reason is Reason.BREAKER_OPEN
    assert expected.decision.retry_after_ms > 0


async def test_a_look_inside_changes_nothing(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        # The key of a bucket ends when it is full again: after 1 s for each call.
        await server.admission.admit_request("acme", 20)
        before = state(limits, server)
        for _ in range(3):
            await server.admission.inspect().request("acme", ONE_CALL, NO_SUBJECT)
            await server.admission.inspect().request("never-seen", ONE_CALL, NO_SUBJECT)
            await server.admission.inspect().call("payments", ONE_CALL, "acme")
            await server.admission.inspect().call("unregistered", ONE_CALL)
        assert state(limits, server) == before


def state(limits: redis.Redis, server: Server) -> tuple[object, ...]:
    counters = server.counters.wire()
    return (
        {key: limits.dump(key) for key in limits.scan_iter()},
        (counters.requests, counters.refused, counters.dependencies, counters.tenants),
        [view.dependency for view in server.admission.breaker_views()],
    )


async def test_an_explanation_that_reaches_redis_late_begins_no_ramp(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    """It began a ramp, which the fleet follows, and showed a tenth of each limit."""
    connect, attempts = SingleStore.connect, 0

    async def connect_late(self: SingleStore, timeout: float) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise TimeoutError
        await connect(self, timeout)

    monkeypatch.setattr(SingleStore, "connect", connect_late)
    monkeypatch.setattr(dry_run, "CONNECT_S", PATIENCE_S)
    document = encode_policy(POLICY)
    head = ConfigHead(epoch=1, revision=7, hash=hash_of(document))
    offer = CheckedConfig(
        head=head, source=ConfigSource.REDIS, policy=POLICY, document=document, tenants=TENANTS
    )
    found = FoundConfiguration("production", offer, POLICY, ServerClock())
    async with dry_run.inspecting(found, open_store(redis_url)) as inside:
        decision = (await inside.request("acme", ONE_CALL, NO_SUBJECT)).decision
    assert (attempts, decision.mode) == (2, Mode.SHARED)
    assert decision.limits[0].remaining == 20
    assert not limits.exists(keys.ramp("production"))
