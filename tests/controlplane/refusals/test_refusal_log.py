"""The sampled log of refusals: unbiased, bounded, and forgotten in time."""

import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from asgiref.sync import sync_to_async

from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts
from controlplane.gateway.postgres import refusal_rows
from controlplane.gateway.postgres.refusal_rows import RefusalRows
from controlplane.gateway.servers.refusal_log import (
    GROUPS,
    MAX_WAITING,
    MAX_WEIGHT,
    OF_OTHERS,
    PER_GROUP,
    PER_POD,
    SPAN_S,
    RefusalLog,
)
from controlplane.refusals.models import DigestKey, RefusalSample
from controlplane.refusals.weighted_sample import WeightedSample, drop_odds
from fuseboard.contract import refusal_samples as wire
from fuseboard.contract.sync import decode_response
from fuseboard.contract.words import Mode, Reason
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, post, ready_gateway
from tests.controlplane.gateway.test_gateway_coordination import gateways  # noqa: F401


class PassingClock(Clock):
    """The real time, and what the test adds to it."""

    def __init__(self):
        added = self.__dict__["added"] = [0.0]
        super().__init__(lambda: time.monotonic() + added[0], lambda: time.time() + added[0])

    def turn(self, seconds):
        self.__dict__["added"][0] += seconds


async def logging_gateway(start, name="one"):
    gateway = await start(name)
    clock = PassingClock()
    gateway.coordination.refusals = RefusalRows(clock, gateway.counts)
    return gateway, clock


def sample(rule="requests", **fields):
    return wire.RefusalSample(
        **{"rule": rule, "reason": Reason.QUOTA, "tenant": "acme", "revision": 7, **fields}
    )


def expected_weights(weights, size):
    """Exact: each thing's expected weight over all that can be dropped."""
    states = {(): Fraction(1)}
    for number, weight in enumerate(weights):
        after: Counter[tuple] = Counter()
        for kept, chance in states.items():
            grown = sorted([*kept, (weight, number)], key=lambda each: each[0])
            if len(grown) <= size:
                after[tuple(grown)] += chance
                continue
            least, odds = drop_odds([each[0] for each in grown])
            assert sum(odds) == 1
            for place, odd in enumerate(odds):
                small = [(least, thing) for at, (_, thing) in enumerate(grown[: len(odds)]) if at != place]
                after[(*small, *grown[len(odds) :])] += chance * odd
        states = after
    expected: Counter[int] = Counter()
    for kept, chance in states.items():
        assert sum(weight for weight, _ in kept) == sum(weights)
        for weight, thing in kept:
            expected[thing] += weight * chance
    return [expected[number] for number in range(len(weights))]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("weights", [[1] * 6, [1, 2, 3, 4, 5], [100, 1, 1, 1, 50], [1, 1, 1000, 3, 3]])
def test_the_expected_weight_of_each_thing_is_its_own(weights, size):
    weights = [Fraction(weight) for weight in weights]
    assert expected_weights(weights, size) == weights


def test_what_is_kept_has_the_weight_of_everything():
    numbers = random.Random(7)
    kept = WeightedSample(5, numbers.random)
    weights = [numbers.choice((1, 3, 400)) for _ in range(2_000)]
    for number, weight in enumerate(weights):
        kept.offer(weight, number)
    assert len(kept.kept) == 5
    assert sum(weight for weight, _ in kept.kept) == pytest.approx(sum(weights))


def test_a_seldom_rule_has_its_place_beside_a_flood():
    clock = TurnedClock()
    log = RefusalLog(clock, Counts())
    for number in range(100):
        log.record(beat(f"pod-{number}", refusals=(sample(weight=5000),) * 2))
    log.record(beat("pod-1", refusals=(sample("seldom"),)))
    clock.turn(SPAN_S)
    weights = Counter()
    for row in log.finished():
        weights[row.heard.sample.rule] += row.weight
    assert weights == {"requests": pytest.approx(1_000_000), "seldom": 1}


def test_a_lying_pod_adds_a_bounded_number_with_a_bounded_weight():
    clock, counts = TurnedClock(), Counts()
    log = RefusalLog(clock, counts)
    for number in range(50):
        log.record(beat(refusals=tuple(sample(f"rule-{number}-{at}", weight=1e9) for at in range(60))))
    clock.turn(SPAN_S)
    rows = log.finished()
    assert len(rows) <= GROUPS * PER_GROUP + OF_OTHERS
    assert sum(row.weight for row in rows) == pytest.approx(PER_POD * MAX_WEIGHT)
    assert counts.refusal_samples == PER_POD
    assert counts.refusal_samples_left_out == 50 * 60 - PER_POD


def test_while_postgres_is_down_a_bounded_number_waits():
    clock, counts = TurnedClock(), Counts()
    log = RefusalLog(clock, counts)
    for _ in range(MAX_WAITING + 7):
        log.record(beat(refusals=(sample(),)))
        clock.turn(SPAN_S)
    waiting = 0
    while log.finished():
        log.drop()
        waiting += 1
    assert waiting == MAX_WAITING
    assert counts.refusal_samples_left_out == 7


def test_a_sample_with_an_impossible_dependency_is_left_out():
    clock = TurnedClock()
    log = RefusalLog(clock, Counts())
    log.record(beat(refusals=(sample(dependency="No Slug"), sample("good"))))
    clock.turn(SPAN_S)
    assert [row.heard.sample.rule for row in log.finished()] == ["good"]


async def test_a_repeated_heartbeat_adds_nothing_and_no_pod_keeps_samples():
    gateway = ready_gateway(TurnedClock())
    once = beat(refusals=(sample(),))
    await post(gateway, once)
    await post(gateway, once)
    assert gateway.counts.refusal_samples == 1
    assert gateway.fleets["production"].servers["pod-1"].beat.refusals == ()


async def test_a_heartbeat_with_too_many_samples_is_refused():
    gateway = ready_gateway(TurnedClock())
    answer = await post(gateway, beat(refusals=(sample(),) * (wire.MAX_SAMPLES + 1)))
    assert answer.status_code == 422
    assert "refusals" in answer.text


async def test_samples_of_two_gateways_are_rows_and_pods_get_one_key(gateways):  # noqa: F811
    both = [await logging_gateway(gateways, name) for name in ("one", "two")]
    one = sample(endpoint="GET /a", mode=Mode.LOCAL, ip="0" * 16, trace="a" * 32)
    for gateway, _ in both:
        await post(gateway, beat(refusals=(one,)))
        await gateway.coordination.look()
    keys = [decode_response((await post(gateway, beat("p2"))).content).digest_key for gateway, _ in both]
    assert keys[0] == keys[1] is not None
    for gateway, clock in both:
        clock.turn(SPAN_S)
        await gateway.coordination.look()
    rows = await sync_to_async(list)(
        RefusalSample.objects.values_list(
            "server", "rule", "reason", "mode", "tenant", "endpoint", "trace", "weight"
        )
    )
    assert rows == [("pod-1", "requests", "quota", "local", "acme", "GET /a", "a" * 32, 1.0)] * 2


async def test_old_samples_and_keys_are_deleted_and_the_rest_is_bounded(gateways, monkeypatch):  # noqa: F811
    monkeypatch.setattr(refusal_rows, "MAX_ROWS", 3)
    gateway, clock = await logging_gateway(gateways)
    await post(gateway, beat())
    await gateway.coordination.look()
    now = datetime.now(UTC)

    def row(**fields):
        return RefusalSample(
            environment="production", service="s", server="p", reason="quota", mode="shared", revision=1,
            retry_after_ms=0, weight=1, **fields,
        )  # fmt: skip

    def store():
        DigestKey.objects.create(environment="production", on=now.date() - timedelta(days=3), key=b"x" * 32)
        RefusalSample.objects.bulk_create(
            [row(at=now - timedelta(hours=25), rule="old"), *(row(at=now, rule=str(n)) for n in range(5))]
        )

    await sync_to_async(store)()
    clock.turn(refusal_rows.CLEAN_S)
    await gateway.coordination.look()
    assert await sync_to_async(list)(RefusalSample.objects.order_by("id").values_list("rule", flat=True)) == [
        "2",
        "3",
        "4",
    ]
    assert await sync_to_async(list)(DigestKey.objects.filter(on__lt=now.date() - timedelta(days=1))) == []


async def test_with_the_log_switched_off_pods_get_no_key_and_nothing_is_taken(gateways, settings):  # noqa: F811
    settings.REFUSAL_LOG_H = 0
    gateway, _ = await logging_gateway(gateways)
    await post(gateway, beat(refusals=(sample(),)))
    await gateway.coordination.look()
    assert decode_response((await post(gateway, beat("p2"))).content).digest_key is None
    assert gateway.counts.refusal_samples == 0
    assert not await sync_to_async(DigestKey.objects.exists)()
