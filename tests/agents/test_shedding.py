"""Which requests an overloaded pod refuses: the lowest tiers first, fairly within one, no longer than needed.

In virtual time: nothing here depends on the speed of the machine.
"""

import logging
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.contract.protection import PodProtection, Shedding
from fuseboard.contract.words import CallTier, LoadLevel
from fuseboard.protection.call_shedding import PASSES_EVERY, CallShedder
from fuseboard.protection.fair_part import GROUPS, RESEED_S, FairPart
from fuseboard.protection.pod import Pod, ServedRequest
from fuseboard.protection.shedding import LOG_S, Load, Shed, Shedder
from tests.agents.overload import simulate

LEVELS = tuple(range(1, 11))
#: 10 slots of 20 ms: the pod finishes 500 requests per second.
CAPACITY = 500
FREE, PRO, PREMIUM = 10, 50, 90


def anyone(draw: random.Random) -> tuple[int, str]:
    return draw.randint(1, 10), f"tenant-{draw.randint(1, 500)}"


def shedder(levels: tuple[int, ...] = LEVELS, *, seed: int = 1, **settings: int) -> Shedder:
    # 50 that wait are 100 ms of work.
    return Shedder(Shedding(**{"queue_max": 50, **settings}), levels, seed=seed)


def under(load: Load, shedding: Shedder, *, seconds: float = 1.0, since: float = 0.0) -> float:
    """Tick for some seconds under one load; returns the time after that."""
    ticks = int(seconds * 4)
    for tick in range(ticks + 1):
        shedding.tick(since + tick / 4, load)
    return since + ticks / 4


def admitted(shedding: Shedder, *priorities: int) -> list[int]:
    return [one for one in priorities if shedding.enter(one, "acme") is None]


# T3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_at_200_percent_half_is_refused_and_priority_decides_who(seed: int) -> None:
    result = simulate(shedder(seed=seed), rate=lambda now: 2 * CAPACITY, who=anyone, seconds=60, seed=seed)
    assert result.drop_rate(5) == pytest.approx(0.5, abs=0.03)
    parts = [result.part(level) for level in LEVELS]
    assert parts == pytest.approx(sorted(parts), abs=0.02)  # never falls with the priority
    assert min(parts[7:]) > 0.97
    assert max(parts[:4]) < 0.03
    for began in range(5, 60, 5):
        assert result.drop_rate(began, began + 5) == pytest.approx(0.5, abs=0.06)
    assert result.throughput(5, 60) > 0.95 * CAPACITY
    assert result.quantile(0.95, 5) < 0.25


def test_without_shedding_the_same_load_has_no_answer_in_time() -> None:
    result = simulate(None, rate=lambda now: 2 * CAPACITY, who=anyone, seconds=30)
    assert result.quantile(0.95) > 5


# T5


def test_throughput_is_flat_above_capacity_and_latency_stays() -> None:
    dropped = []
    for load in (0.5, 0.9, 1.25, 1.5, 2.0):
        result = simulate(shedder(), rate=lambda now, load=load: load * CAPACITY, who=anyone, seconds=40)
        assert result.throughput(5, 40) > 0.93 * min(1.0, load) * CAPACITY
        assert result.quantile(0.99, 5) < 0.3
        dropped.append(result.drop_rate(5))
    assert dropped == pytest.approx([0, 0, 0.2, 0.33, 0.5], abs=0.04)
    assert dropped[:2] == [0, 0]


# T11


@pytest.mark.parametrize(
    ("pressure", "expected"),
    [(0.65, [FREE, PRO, PREMIUM]), (0.75, [PRO, PREMIUM]), (0.95, [PREMIUM])],
)
def test_pressure_refuses_the_lowest_tier_then_all_but_the_highest(
    pressure: float, expected: list[int]
) -> None:
    shedding = shedder((FREE, PRO, PREMIUM))
    under(Load(pressure=pressure), shedding)
    assert admitted(shedding, FREE, PRO, PREMIUM) == expected


def test_pressure_at_the_threshold_refuses_no_one() -> None:
    shedding = shedder((FREE, PREMIUM))
    under(Load(pressure=0.7), shedding)
    assert (admitted(shedding, FREE, PREMIUM), shedding.level) == ([FREE, PREMIUM], LoadLevel.NORMAL)


def test_each_level_of_pressure_is_left_at_a_lower_figure_than_it_is_entered_at() -> None:
    shedding = shedder((FREE, PRO, PREMIUM))
    seen = []
    for step, pressure in enumerate((0.5, 0.95, 0.85, 0.81, 0.79, 0.71, 0.61, 0.59)):
        shedding.tick(float(step), Load(pressure=pressure))
        seen.append(shedding.level)
    hard, some, none = LoadLevel.SHED_HARD, LoadLevel.SHED, LoadLevel.NORMAL
    assert seen == [none, hard, hard, hard, some, some, some, none]


def test_pressure_of_a_pod_with_one_tier_thins_it_out() -> None:
    shedding, now = shedder((FREE,)), 0.0
    refused = total = 0
    for _ in range(80):
        now += 0.25
        for number in range(25):
            total += 1
            if shedding.enter(FREE, f"tenant-{number}") is None:
                shedding.leave()
            else:
                refused += 1
        shedding.tick(now, Load(pressure=0.8))
    assert 0.02 < refused / total < 0.8


# T23


@pytest.mark.parametrize("seed", range(1, 5))
def test_twice_the_load_and_back_switches_twice(seed: int) -> None:
    result = simulate(
        shedder(seed=seed),
        rate=lambda now: CAPACITY * (2 if 20 <= now < 40 else 0.7),
        who=anyone,
        seconds=60,
        seed=seed,
    )
    assert len(result.switches) == 2
    assert 20 <= result.switches[0] < 21
    assert 42 <= result.switches[1] < 46
    assert result.drop_rate(0, 20) == 0
    assert result.drop_rate(42, 60) == 0


def test_four_times_slower_service_is_measured_and_its_end_too() -> None:
    result = simulate(
        shedder(),
        rate=lambda now: 400,
        who=anyone,
        seconds=80,
        service_s=lambda now: 0.08 if 20 <= now < 50 else 0.02,
    )
    assert result.quantile(0.95, 30, 50) < 0.8
    assert result.drop_rate(30, 50) == pytest.approx(1 - 125 / 400, abs=0.05)
    assert result.drop_rate(70, 80) == 0


# p95


@pytest.mark.parametrize("load", [1.25, 2.0])
def test_a_queue_that_no_one_sees_is_kept_short_by_p95(load: float) -> None:
    result = simulate(
        Shedder(Shedding(), LEVELS, seed=1),
        rate=lambda now: CAPACITY * (load if 10 <= now < 70 else 0.7),
        who=anyone,
        seconds=100,
        sla_s=0.5,
    )
    assert result.throughput(20, 70) > 0.9 * CAPACITY
    assert result.quantile(0.95, 20, 70) < 0.8  # 100 requests per second too many: 5 s after 25 s
    # Who shares a group of the fair part depends on the hash of this process. Rarely it pauses once.
    assert len(result.switches) <= 4
    assert result.drop_rate(90, 100) == 0


def test_p95_below_its_share_of_the_sla_refuses_no_one() -> None:
    shedding = shedder((FREE, PREMIUM))
    under(Load(latency=0.89, route="GET /", sla_s=1.0), shedding)
    assert shedding.level is LoadLevel.NORMAL
    under(Load(latency=0.91, route="GET /", sla_s=1.0), shedding, since=2.0)
    assert shedding.level is LoadLevel.SHED


# Sources


def test_within_the_boundary_tier_a_noisy_source_gets_no_more_than_others() -> None:
    def who(draw: random.Random) -> tuple[int, str]:
        if draw.random() < 0.7:
            return FREE, "noisy"
        return FREE, f"quiet-{draw.randint(1, 20)}"

    result = simulate(shedder((FREE,)), rate=lambda now: 1400, who=who, seconds=40)
    quiet = [name for name in result.asked_by if name != "noisy"]
    passed = sum(result.admitted_by.get(name, 0) for name in quiet) / sum(
        result.asked_by[name] for name in quiet
    )
    noisy = result.admitted_by["noisy"] / result.asked_by["noisy"]
    # Thinning would admit 36 % of both.
    assert passed > 0.85
    assert noisy < 0.15
    assert result.throughput(5, 40) > 0.9 * CAPACITY


def test_sources_are_sorted_by_a_hash_that_changes() -> None:
    draw = random.Random(5)
    fair = FairPart(draw)
    seeds = set()
    for now in (0.0, RESEED_S / 2, RESEED_S + 1, 2 * RESEED_S + 2):
        fair.tick(10, 0.25, now, forget=False)
        seeds.add(fair._seed)
    assert len(seeds) == 3


def test_any_number_of_sources_takes_the_same_memory() -> None:
    fair = FairPart(random.Random(1))
    for number in range(10_000):
        fair.take(f"source-{number}")
    assert len(fair._asked) == len(fair._rates) == len(fair._left) == GROUPS


@given(
    asked=st.lists(st.integers(0, 300), min_size=1, max_size=80),
    rate=st.floats(1, 2000),
    ticks=st.integers(2, 20),
)
def test_no_more_than_the_rate_passes(asked: list[int], rate: float, ticks: int) -> None:
    fair, passed = FairPart(random.Random(1)), 0
    fair.tick(rate, 0.25, 0.0, forget=True)
    for tick in range(1, ticks):
        for source, count in enumerate(asked):
            passed += sum(fair.take(f"source-{source}") for _ in range(count))
        fair.tick(rate, 0.25, tick / 4, forget=False)
    assert passed <= rate * ticks * 0.25 + 1


# Invariants


@given(
    st.lists(
        st.tuples(
            st.floats(0, 500),
            st.one_of(st.none(), st.floats(0, 5)),
            st.floats(0, 1),
            st.lists(st.sampled_from(LEVELS), max_size=60),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_a_higher_level_is_never_refused_while_a_lower_one_is_admitted(
    ticks: list[tuple[float, float | None, float, list[int]]],
) -> None:
    shedding = shedder()
    for number, (waiting, latency, pressure, priorities) in enumerate(ticks):
        shedding.tick(number / 4, Load(waiting, latency, "r", 0.5, int(waiting), pressure))
        answers = [(one, shedding.enter(one, f"t{one}")) for one in priorities]
        highest_refused = max((one for one, shed in answers if shed is not None), default=0)
        lowest_admitted = min((one for one, shed in answers if shed is None), default=99)
        assert lowest_admitted >= highest_refused  # equal: the level that is divided
        for _, shed in answers:
            if shed is None:
                shedding.leave()
            else:
                assert 1 <= shed.retry_after_s <= 45


def test_when_every_figure_is_low_again_shedding_ends_within_three_seconds() -> None:
    shedding = shedder((FREE, PREMIUM))
    now = under(Load(waiting=200, latency=2.0, sla_s=0.1, pressure=1.0), shedding, seconds=20)
    assert shedding.active
    under(Load(), shedding, seconds=3, since=now)
    assert not shedding.active
    assert admitted(shedding, FREE, PREMIUM) == [FREE, PREMIUM]


def test_it_does_not_begin_again_at_once() -> None:
    shedding, switches, now = shedder((FREE, PREMIUM)), [], 0.0
    for tick in range(400):
        now = tick / 4
        was = shedding.active
        shedding.tick(now, Load(waiting=200 if tick % 2 else 0))
        if shedding.active != was:
            switches.append(now)
    assert all(later - earlier >= 2 for earlier, later in pairwise(switches))


def test_a_retry_waits_for_the_time_to_drain_and_callers_do_not_come_back_together() -> None:
    shedding = shedder((FREE, PREMIUM))
    for tick in range(40):
        for _ in range(5):  # 20 per second
            shedding.enter(PREMIUM, "acme")
            shedding.leave()
        shedding.tick(tick / 4, Load(waiting=100, pressure=0.0))
    answers = (shedding.enter(FREE, f"t{number}") for number in range(200))
    sheds = [answer.retry_after_s for answer in answers if isinstance(answer, Shed)]
    assert min(sheds) >= 100 / 20 * 0.8
    assert len(set(sheds)) == len(sheds)


def test_settings_change_while_it_sheds() -> None:
    shedding = shedder((FREE, PREMIUM))
    now = under(Load(pressure=0.75), shedding)
    assert admitted(shedding, FREE) == []
    shedding.configure(Shedding(shed_at=95, shed_hard_at=99), (FREE, PRO, PREMIUM))
    under(Load(pressure=0.75), shedding, since=now)
    assert admitted(shedding, FREE, PRO, PREMIUM) == [FREE, PRO, PREMIUM]


def test_more_tiers_than_levels_keep_their_order() -> None:
    many = tuple(range(40))
    shedding = shedder(many)
    under(Load(pressure=0.75), shedding)
    passing = admitted(shedding, *many)
    assert passing == list(range(min(passing), 40))
    assert 1 <= min(passing) <= 3


def test_each_change_is_one_line_with_its_inputs(caplog: pytest.LogCaptureFixture) -> None:
    shedding = shedder((FREE, PREMIUM))
    with caplog.at_level(logging.INFO, logger="fuseboard.shedding"):
        now = under(Load(waiting=80, pressure=0.4), shedding, seconds=LOG_S / 2)
        under(Load(), shedding, seconds=5, since=now)
    began, ended = [record.getMessage() for record in caplog.records]
    assert began.startswith("shedding.began cause=queue")
    assert "waiting=80 queue_max=50" in began
    assert "pressure=0.40" in began
    assert ended.startswith("shedding.ended")
    assert shedding.changes >= 2


# Calls that leave the pod


def calls() -> CallShedder:
    return CallShedder("payments", Shedding(queue_max=10), sla_ms=1000)


def passing(shedding: CallShedder) -> list[CallTier]:
    """The tiers of which most calls pass."""
    return [one for one in CallTier if sum(not shedding.refuses(one) for _ in range(10)) > 2]


def test_calls_are_refused_from_the_least_important_tier() -> None:
    shedding = calls()
    shedding.look(10.0, 10, 0.9)
    assert passing(shedding) == list(CallTier)
    shedding.look(11.0, 11, None)
    assert passing(shedding) == [CallTier.CRITICAL, CallTier.STANDARD]
    shedding.look(12.0, 0, 1.4)
    assert passing(shedding) == [CallTier.CRITICAL]
    # Neither flutters, and both end.
    shedding.look(12.25, 0, 0.1)
    assert passing(shedding) == [CallTier.CRITICAL]
    shedding.look(15.0, 0, 0.75)
    assert CallTier.OPTIONAL not in passing(shedding)
    for now in (16.0, 17.0, 18.5, 20.0):
        shedding.look(now, 0, 0.1)
    assert passing(shedding) == list(CallTier)


def test_some_refused_calls_pass_so_that_the_dependency_is_measured() -> None:
    shedding = calls()
    shedding.look(1.0, 100, None)
    passed = sum(not shedding.refuses(CallTier.OPTIONAL) for _ in range(200))
    assert passed == 200 / PASSES_EVERY
    assert shedding.refused == 200 - passed


def test_a_dependency_without_an_sla_is_judged_by_its_queue_alone() -> None:
    shedding = CallShedder("payments", Shedding(queue_max=10), sla_ms=0)
    shedding.look(1.0, 0, 60.0)
    assert passing(shedding) == list(CallTier)


def test_a_long_stream_is_in_flight_but_no_longer_unanswered() -> None:
    """Shedding by latency never ended on pods with streams: they counted as requests that wait."""
    pod = Pod(PodProtection(), (10,))
    streams = [pod.enter("GET /events", 10, "acme") for _ in range(3)]
    for visit in streams[:2]:
        assert isinstance(visit, ServedRequest)
        visit.answered(200)
    requests = pod.requests
    assert (requests.in_flight, requests.unanswered) == (3, 1)
    for visit in streams:
        assert isinstance(visit, ServedRequest)
        visit.leave()
        visit.leave()
    assert (requests.in_flight, requests.unanswered) == (0, 0)
