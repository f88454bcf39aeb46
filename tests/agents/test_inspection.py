"""The supported view of the inside of a running pod: it predicts decisions, and changes nothing."""

import redis

from fuseboard.contract.words import Outcome, Reason
from fuseboard.subject import NO_SUBJECT, ONE_CALL
from tests.agents.servers import Server, running
from tests.waiting import eventually


async def test_the_expected_decision_is_the_next_one(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
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
        await server.admission.admit_request("acme")
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
