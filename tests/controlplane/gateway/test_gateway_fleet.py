"""Who is there: beats and silence, on a clock turned by hand."""

import pytest

from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.liveness import RecentMaximum, due_after, lease_of, state_after
from controlplane.gateway.servers.rows import row_of
from fuseboard.contract.sync import Applied, BreakerView
from fuseboard.contract.words import BreakerState, ConfigStatus, Mode, OverrideMode
from tests.controlplane.gateway.manual_gateway import NOON, TurnedClock, beat

ONLINE, LATE, UNKNOWN = ServerState.ONLINE, ServerState.LATE, ServerState.UNKNOWN
OFFLINE, GONE = ServerState.OFFLINE, ServerState.GONE


@pytest.fixture
def clock():
    return TurnedClock()


@pytest.fixture
def fleet(clock):
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def sweep_for(fleet, clock, seconds):
    """Let time pass as it does in the process: one sweep per second."""
    for _ in range(int(seconds)):
        clock.turn(1.0)
        fleet.sweep()


def states(fleet):
    return {name: server.state for name, server in fleet.servers.items()}


@pytest.mark.parametrize(
    ("silent_s", "state"),
    [
        (0.0, ONLINE),
        (6.5, ONLINE),  # 5 s and 20 % jitter and 0.5 s of travel
        (6.6, LATE),
        (17.0, LATE),  # the lease: 3 x 5 s + 2 s
        (17.1, UNKNOWN),
        (51.0, UNKNOWN),  # two leases more
        (51.1, OFFLINE),
        (86_400.0, OFFLINE),
        (86_400.1, GONE),
    ],
)
def test_silence_makes_late_then_unknown_then_offline_then_gone(silent_s, state):
    assert state_after(silent_s, 5.0) is state


def test_a_pod_counts_as_present_for_three_heartbeats_and_grace_and_never_twice_that():
    assert lease_of(5.0) == 17.0
    assert due_after(5.0) == 6.5
    assert state_after(lease_of(5.0) + 0.001, 5.0) is UNKNOWN


def test_a_silent_pod_passes_through_the_states_and_a_heartbeat_brings_it_back(fleet, clock):
    fleet.absorb(beat())
    seen = [states(fleet)["pod-1"]]
    for _ in range(60):
        sweep_for(fleet, clock, 1)
        if seen[-1] is not states(fleet)["pod-1"]:
            seen.append(states(fleet)["pod-1"])
    assert seen == [ONLINE, LATE, UNKNOWN, OFFLINE]
    assert fleet.absorb(beat()).urgent
    assert states(fleet) == {"pod-1": ONLINE}


def test_a_pod_that_leaves_is_gone_at_once_and_an_overtaken_heartbeat_does_not_revive_it(fleet, clock):
    fleet.absorb(beat(sequence=10))
    assert fleet.absorb(beat(sequence=12, leaving=True)).urgent
    fleet.absorb(beat(sequence=11))
    assert states(fleet) == {"pod-1": GONE}
    assert fleet.servers["pod-1"].left_wall == NOON + clock.now
    fleet.dirty.clear()
    sweep_for(fleet, clock, 62)
    assert fleet.servers == {}


@pytest.mark.parametrize("sequence", [5, 3])
def test_replayed_and_overtaken_heartbeats_change_nothing(fleet, clock, sequence):
    fleet.absorb(beat(sequence=5, mode=Mode.LOCAL))
    clock.turn(1.0)
    assert not fleet.absorb(beat(sequence=sequence, mode=Mode.SHARED)).urgent
    assert fleet.servers["pod-1"].beat.mode is Mode.LOCAL
    assert fleet.servers["pod-1"].seen == 1_000.0
    assert fleet.stale_beats == 1


def test_a_late_heartbeat_of_the_previous_process_is_ignored(fleet, clock):
    fleet.absorb(beat(boot="boot-old1", sequence=100))
    assert fleet.absorb(beat(boot="boot-new1", sequence=1, up_ms=200)).urgent
    assert not fleet.absorb(beat(boot="boot-old1", sequence=101)).urgent
    assert fleet.servers["pod-1"].beat.boot == "boot-new1"


def test_of_two_processes_with_one_name_the_younger_counts_until_it_falls_silent(fleet, clock):
    fleet.absorb(beat(boot="younger-1", up_ms=10_000))
    assert not fleet.absorb(beat(boot="older-001", up_ms=90_000)).urgent
    sweep_for(fleet, clock, 18)
    assert states(fleet)["pod-1"] is UNKNOWN
    assert fleet.absorb(beat(boot="older-001", up_ms=108_000)).urgent


@pytest.mark.parametrize(
    "news",
    [
        {"mode": Mode.LOCAL},
        {"leaving": True},
        {"boot": "boot-0002", "up_ms": 10},
        {"applied": Applied(epoch=1, revision=2, hash="ab", status=ConfigStatus.APPLIED)},
        {"breakers": (BreakerView(dependency="llm", state=BreakerState.OPEN),)},
        {"breakers": (BreakerView(dependency="llm", override=OverrideMode.FORCED_OPEN),)},
    ],
)
def test_changes_of_state_are_urgent(fleet, news):
    calm = {"breakers": (BreakerView(dependency="llm", for_ms=5, window_calls=1),)}
    assert fleet.absorb(beat(**calm)).urgent
    fleet.urgent.clear()
    older = {"breakers": (BreakerView(dependency="llm", for_ms=9_000, window_calls=7),)}
    assert not fleet.absorb(beat(**older)).urgent
    assert fleet.urgent == {}
    assert fleet.absorb(beat(**{**calm, **news})).urgent
    assert set(fleet.urgent) == {"pod-1"}


def test_a_fleet_that_falls_silent_at_once_becomes_unknown_but_not_offline(fleet, clock):
    for n in range(20):
        fleet.absorb(beat(f"pod-{n}"))
    sweep_for(fleet, clock, 120)
    assert set(states(fleet).values()) == {UNKNOWN}
    assert fleet.preservation.frozen
    assert fleet.size.live_servers == 20


def test_expiry_resumes_when_the_fleet_is_heard_again(fleet, clock):
    for n in range(20):
        fleet.absorb(beat(f"pod-{n}"))
    sweep_for(fleet, clock, 60)
    assert fleet.preservation.frozen
    for n in range(20):
        fleet.absorb(beat(f"pod-{n}"))
    sweep_for(fleet, clock, 1)
    assert not fleet.preservation.frozen


def test_a_fleet_that_really_shrank_is_believed_after_fifteen_minutes(fleet, clock):
    for n in range(20):
        fleet.absorb(beat(f"pod-{n}"))
    for _ in range(960):
        for n in range(6):
            fleet.absorb(beat(f"pod-{n}"))
        sweep_for(fleet, clock, 1)
    assert not fleet.preservation.frozen
    assert list(states(fleet).values()).count(OFFLINE) == 14
    assert list(states(fleet).values()).count(ONLINE) == 6


@pytest.mark.parametrize(("size", "lost", "frozen"), [(9, 9, False), (20, 3, False), (20, 4, True)])
def test_fifteen_percent_of_ten_or_more_freeze_expiry(fleet, clock, size, lost, frozen):
    for n in range(size):
        fleet.absorb(beat(f"pod-{n}"))
    for _ in range(55):
        for n in range(lost, size):
            fleet.absorb(beat(f"pod-{n}"))
        sweep_for(fleet, clock, 1)
    assert fleet.preservation.frozen is frozen
    assert list(states(fleet).values()).count(OFFLINE) == (0 if frozen else lost)


def test_servers_lost_one_by_one_over_minutes_do_not_freeze_anything(fleet, clock):
    alive = set(range(20))
    for n in alive:
        fleet.absorb(beat(f"pod-{n}"))
    for second in range(600):
        if second % 60 == 0 and len(alive) > 12:
            alive.pop()
        for n in alive:
            fleet.absorb(beat(f"pod-{n}"))
        sweep_for(fleet, clock, 1)
        assert not fleet.preservation.frozen


def test_after_a_suspended_gateway_resumes_every_pod_gets_that_time(fleet, clock):
    fleet.absorb(beat())
    sweep_for(fleet, clock, 3)
    assert fleet.woke_wall is None
    clock.turn(3_600.0)
    woke = NOON + clock.now
    assert fleet.woke_wall == woke, "also before the sweep that notices it"
    fleet.sweep()
    assert states(fleet) == {"pod-1": ONLINE}
    clock.turn(1.0)
    assert fleet.woke_wall == woke
    sweep_for(fleet, clock, 14)
    assert states(fleet) == {"pod-1": UNKNOWN}


def test_heartbeats_are_less_frequent_in_a_larger_fleet(clock):
    fleet = Fleet("production", clock, beat_ms=1_000, beats_per_s=20)
    assert fleet.size.next_ms == 1_000
    for n in range(100):
        fleet.absorb(beat(f"pod-{n}"))
    assert fleet.size.next_ms == 5_000


def test_live_servers_are_the_most_of_the_last_ten_minutes_and_at_least_one(fleet, clock):
    assert fleet.size.live_servers == 1
    for n in range(5):
        fleet.absorb(beat(f"pod-{n}"))
    for n in range(4):
        fleet.absorb(beat(f"pod-{n}", leaving=True))
    assert fleet.size.live_servers == 5
    for _ in range(590):
        fleet.absorb(beat("pod-4"))
        sweep_for(fleet, clock, 1)
    assert fleet.size.live_servers == 5
    for _ in range(30):
        fleet.absorb(beat("pod-4"))
        sweep_for(fleet, clock, 1)
    assert fleet.size.live_servers == 1


def test_a_process_that_only_leaves_does_not_count_as_live(fleet, clock):
    """``fuseboard doctor`` asks the gateway as a server that leaves at once."""
    for n in range(3):
        fleet.absorb(beat(f"pod-{n}"))
    for n in range(5):
        fleet.absorb(beat(f"doctor-{n}", leaving=True))
        sweep_for(fleet, clock, 1)
    assert fleet.size.live_servers == 3


def test_a_recent_maximum_of_nothing_is_one():
    maximum = RecentMaximum()
    assert maximum.value == 1
    assert maximum.add(0.0, 0) == 1


def test_moments_stay_where_they_were_first_read(fleet, clock):
    def moments(n):
        view = BreakerView(
            dependency="llm", state=BreakerState.OPEN, for_ms=1_000 * n, remaining_ms=60_000 - 1_000 * n
        )
        fleet.absorb(beat(mode=Mode.LOCAL, mode_for_ms=1_000 * n, breakers=(view,)))
        row = row_of(fleet.servers["pod-1"])
        return row.mode_since, row.breakers

    first = moments(1)
    clock.turn(1.3)
    assert moments(2) == first
