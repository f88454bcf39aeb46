"""What a gateway counts and keeps of the locks and the permits of pods."""

from typing import Any

import pytest

from controlplane.gateway.metrics import exporter
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.primitive_track import WINDOW_S
from controlplane.gateway.servers.rows import row_of
from fuseboard.contract.primitives import HeldLock, LockCounters, OnceCounters, Primitives
from fuseboard.contract.sync import PermitCounters
from tests.controlplane.gateway.manual_gateway import NOON, TurnedClock, beat, ready_gateway


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def fleet(clock: TurnedClock) -> Fleet:
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def locks(**counts: int) -> Primitives:
    return Primitives(locks=LockCounters(**counts))


def row(fleet: Fleet) -> Any:
    return row_of(fleet.servers["pod-1"]).primitives


def test_a_row_has_what_was_counted_in_the_last_ten_minutes(fleet: Fleet, clock: TurnedClock) -> None:
    fleet.absorb(beat(primitives=locks(acquired=100, lost=7)))
    assert row(fleet) == {}, "an old process counted them at some time"
    for minute in range(1, 6):
        clock.turn(60)
        fleet.absorb(beat(primitives=locks(acquired=100 + minute, lost=8)))
    assert row(fleet) == {"locks": {"acquired": 5, "lost": 1}}
    for _ in range(int(WINDOW_S / 60) + 2):
        clock.turn(60)
        fleet.absorb(beat(primitives=locks(acquired=105, lost=8)))
    assert row(fleet) == {}


def test_a_young_process_is_counted_from_its_start(fleet: Fleet) -> None:
    fleet.absorb(beat(up_ms=4_000, primitives=Primitives(once=OnceCounters(begun=3, replayed=1))))
    assert row(fleet) == {"once": {"begun": 3, "replayed": 1}}


def test_a_restarted_process_counts_from_zero(fleet: Fleet, clock: TurnedClock) -> None:
    fleet.absorb(beat(up_ms=1_000, primitives=locks(acquired=5)))
    clock.turn(5)
    fleet.absorb(beat(boot="boot-0002", up_ms=1_000, primitives=locks(acquired=2)))
    assert row(fleet) == {"locks": {"acquired": 2}}
    assert fleet.sums.primitive_events["locks", "acquired"] == 7


def test_a_row_says_since_when_locks_are_held(fleet: Fleet, clock: TurnedClock) -> None:
    held = (HeldLock(name="nightly report", held_ms=47_000), HeldLock(name="export", held_ms=2_000))
    fleet.absorb(beat(primitives=Primitives(holding=9, longest_ms=47_000, held=held)))
    seen = NOON + clock.now
    assert row(fleet) == {
        "holding": 9,
        "longest_since": seen - 47,
        "held": [["nightly report", seen - 47], ["export", seen - 2]],
    }


def test_an_old_agent_is_known_as_one_that_does_not_report(fleet: Fleet, clock: TurnedClock) -> None:
    fleet.absorb(beat())
    assert row(fleet) is None
    clock.turn(5)
    fleet.absorb(beat(boot="boot-0002", primitives=Primitives()))
    assert row(fleet) == {}


def test_names_are_not_kept_while_a_token_keeps_too_much(fleet: Fleet) -> None:
    fleet.kept._token_bytes = -1
    held = (HeldLock(name="nightly-report", held_ms=47_000),)
    fleet.absorb(beat(primitives=Primitives(holding=1, longest_ms=47_000, held=held)), token="sel1")
    assert set(row(fleet)) == {"holding", "longest_since"}
    assert fleet.kept.cut_beats == 1


def test_pods_without_locks_keep_one_point(fleet: Fleet, clock: TurnedClock) -> None:
    for _ in range(30):
        fleet.absorb(beat(primitives=Primitives()))
        clock.turn(60)
    assert len(fleet.servers["pod-1"].primitives._points) == 1


def test_the_points_of_a_busy_pod_are_bounded(fleet: Fleet, clock: TurnedClock) -> None:
    for number in range(500):
        fleet.absorb(beat(primitives=locks(acquired=number)))
        clock.turn(5)
    assert len(fleet.servers["pod-1"].primitives._points) <= WINDOW_S / 60 + 3
    # Between 10 and 11 minutes, a beat each 5 s.
    assert 120 <= row(fleet)["locks"]["acquired"] <= 133


def test_a_row_has_the_permits_of_the_last_ten_minutes(fleet: Fleet, clock: TurnedClock) -> None:
    for minute in range(25):
        counts = PermitCounters(issued=100 * minute, expired=10 * min(minute, 15))
        fleet.absorb(beat(up_ms=1_000, primitives=Primitives(), permits=counts))
        clock.turn(60)
    lately = row_of(fleet.servers["pod-1"])
    assert lately.permits == {"issued": 1_000, "expired": 10}
    assert lately.primitives == {}
    fleet.absorb(beat("pod-2", primitives=Primitives()))
    assert row_of(fleet.servers["pod-2"]).permits == {}


def test_prometheus_gets_counters_that_survive_the_end_of_a_pod() -> None:
    gateway = ready_gateway()
    fleet = gateway.fleet("production")
    fleet.absorb(beat(up_ms=1_000, primitives=locks(acquired=5, lost=1)))
    fleet.absorb(
        beat(
            "pod-2",
            up_ms=1_000,
            primitives=Primitives(once=OnceCounters(begun=3), holding=2, longest_ms=1_500),
        )
    )
    fleet.absorb(
        beat("pod-3", up_ms=1_000, primitives=Primitives(), permits=PermitCounters(issued=9, expired=2))
    )
    text = exporter(gateway)(None).decode()
    for line in (
        'fuseboard_fleet_locks_total{environment="production",event="acquired"} 5.0',
        'fuseboard_fleet_locks_total{environment="production",event="lost"} 1.0',
        'fuseboard_fleet_locks_total{environment="production",event="taken"} 0.0',
        'fuseboard_fleet_once_total{environment="production",event="begun"} 3.0',
        'fuseboard_fleet_locks_held{environment="production"} 2.0',
        'fuseboard_fleet_locks_longest_seconds{environment="production"} 1.5',
        'fuseboard_fleet_permits_total{environment="production",event="issued"} 9.0',
        'fuseboard_fleet_permits_total{environment="production",event="expired"} 2.0',
    ):
        assert line in text
