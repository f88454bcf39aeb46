"""How long a refusal lasts that a pod remembers."""

import asyncio
import struct
from math import inf

import msgspec
import pytest
import redis

from fuseboard.batching import refusals as batching_refusals
from fuseboard.batching.refusals import MAX_REMEMBERED, RememberedRefusal, RememberedRefusals
from fuseboard.contract.policy import Limit, Policy, Tier
from fuseboard.contract.words import Algorithm, Reason
from fuseboard.errors import Refused
from tests.agents.servers import PATIENT, POLICY, configured, running
from tests.waiting import PATIENCE_S

#: One call more per minute: no pause of the machine makes room.
BUCKET = Limit(name="requests", limit=10, window_ms=600_000, burst=10, algorithm=Algorithm.TOKEN_BUCKET)


@pytest.fixture(autouse=True)
def memory_outlasts_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may pause for longer than the usual second."""
    monkeypatch.setattr(batching_refusals, "MEMORY_S", PATIENCE_S)


def with_quota(quota: Limit) -> Policy:
    free = Tier(name="free", quotas=(quota,))
    return msgspec.structs.replace(POLICY, tiers=(free, POLICY.tiers[1]), tuning=PATIENT)


def with_vendor_limit(limit: Limit) -> Policy:
    payments = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=(limit,))
    return msgspec.structs.replace(POLICY, dependencies=(payments,), tuning=PATIENT)


def room_at_ms(limits: redis.Redis, cost: int, pattern: str) -> float:
    """When the bucket in Redis has room for ``cost``, by the clock of Redis."""
    (key,) = limits.keys(pattern)
    ahead_us, fraction, limit, window = struct.unpack(">dddd", limits.get(key))
    return (ahead_us + fraction / limit - (BUCKET.burst - cost) * window / limit) / 1000


def now_ms(limits: redis.Redis) -> float:
    seconds, micros = limits.time()
    return seconds * 1000 + micros / 1000


async def test_a_grant_makes_the_remembered_refusal_of_a_larger_cost_longer(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, configuration=configured(with_quota(BUCKET))) as server:
        for _ in range(9):
            assert (await server.admission.admit_request("acme")).allowed
        assert not (await server.admission.admit_request("acme", 2)).allowed
        assert (await server.admission.admit_request("acme")).allowed
        before = now_ms(limits)
        again = await server.admission.admit_request("acme", 2)
        after = now_ms(limits)
        room = room_at_ms(limits, 2, "fb1:production:{t:*")
        # The pod estimates when Redis decided. The estimate is never before the pod asked.
        assert room - after - (after - before) - 20 <= again.retry_after_ms <= room - before + 20


async def test_a_grant_to_one_tenant_ends_the_refusal_of_another_by_the_same_vendor_limit(
    limits: redis.Redis, redis_url: str
):
    slow = msgspec.structs.replace(BUCKET, name="calls")
    async with running(redis_url, configuration=configured(with_vendor_limit(slow))) as server:
        for _ in range(9):
            await server.admission.admit_call("payments")
        with pytest.raises(Refused):
            await server.admission.admit_call("payments", tenant="acme", cost=2)
        await server.admission.admit_call("payments")
        before = now_ms(limits)
        with pytest.raises(Refused) as caught:
            await server.admission.admit_call("payments", tenant="acme", cost=2)
        after = now_ms(limits)
        room = room_at_ms(limits, 2, "fb1:production:{d:payments}*calls*")
        waits = caught.value.decision.retry_after_ms
        assert room - after - (after - before) - 20 <= waits <= room - before + 20


async def test_without_a_grant_a_refusal_is_answered_from_memory(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(with_quota(BUCKET))) as server:
        for _ in range(10):
            await server.admission.admit_request("acme")
        await server.admission.admit_request("acme", 2)
        # Of another tenant: another counter.
        assert (await server.admission.admit_request("late")).allowed
        before = server.admission.batcher._questions
        for _ in range(100):
            assert not (await server.admission.admit_request("acme", 2)).allowed
        assert server.admission.batcher._questions == before


async def test_a_late_answer_makes_no_refusal_longer(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with running(redis_url, configuration=configured(with_quota(BUCKET))) as server:
        for _ in range(10):
            await server.admission.admit_request("acme")
        run, arrivals = server.admission.batcher._store.run, []

        def slowly(script, keys, arguments, on_reply):  # type: ignore[no-untyped-def]
            loop = asyncio.get_running_loop()

            def answer(reply: object) -> None:
                arrivals.append(now_ms(limits))
                on_reply(reply)

            run(script, keys, arguments, lambda reply: loop.call_later(0.5, answer, reply))

        monkeypatch.setattr(server.admission.batcher._store, "run", slowly)
        refused = await server.admission.admit_request("acme", 5)
        assert not refused.allowed
        # The answer came half a second late.
        assert refused.retry_after_ms <= room_at_ms(limits, 5, "fb1:production:{t:*") - arrivals[-1] + 20
        remembered = await server.admission.admit_request("acme", 5)
        assert remembered.retry_after_ms <= refused.retry_after_ms


class Demand:
    def __init__(self, *keys: bytes) -> None:
        self.keys = keys
        self.remembered: RememberedRefusal | None = None


def remembering(*demands: Demand, until: float = inf) -> RememberedRefusals:
    refusals = RememberedRefusals()
    for demand in demands:
        refusals.remember(demand, Reason.QUOTA, "requests", until)
    return refusals


def test_a_change_ends_the_refusals_of_its_counters_only():
    one, two = Demand(b"a", b"b"), Demand(b"c")
    refusals = remembering(one, one, two)
    refusals.forget_counters((b"b", b"d"))
    assert one.remembered is None
    assert two.remembered is not None
    refusals.forget_counters((b"a", b"c"))
    assert two.remembered is None
    assert not refusals.by_counter
    assert refusals._size == 0


def test_memory_answers_nothing_while_a_question_may_change_the_counter():
    demand = Demand(b"a", b"b")
    refusals = remembering(demand)
    assert refusals.left_s(demand) == inf
    refusals.begin_change((b"b",))
    refusals.begin_change((b"b", b"c"))
    assert refusals.left_s(demand) == 0
    refusals.end_change((b"b", b"c"))
    assert refusals.left_s(demand) == 0
    refusals.end_change((b"b",))
    assert refusals.left_s(demand) == inf
    assert not refusals._changing


def test_the_memory_of_refusals_is_bounded():
    demands = [Demand(str(number).encode()) for number in range(MAX_REMEMBERED + 1)]
    refusals = remembering(*demands)
    assert refusals._size == 1
    assert [demand.remembered is None for demand in demands] == [True] * MAX_REMEMBERED + [False]


def test_15_refusals_that_have_ended_cost_a_grant_nothing():
    idle, busy = Demand(b"a", b"b"), Demand(b"c")
    refusals = remembering(idle, until=0.0)
    refusals.forget_counters((b"c",))
    assert (refusals.by_counter, refusals._size) == ({}, 0)
    # The pod asks Redis again, for the same demand.
    refusals.remember(busy, Reason.QUOTA, "requests", inf)
    refusals.forget_demand(busy)
    assert (refusals.by_counter, refusals._size) == ({}, 0)
