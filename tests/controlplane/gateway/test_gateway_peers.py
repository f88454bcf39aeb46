"""Several gateways, and several processes under one name."""

import pytest

from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.rows import row_of
from fuseboard.contract.sync import Counters
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat


@pytest.fixture
def clock():
    return TurnedClock()


@pytest.fixture
def fleet(clock):
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def test_live_servers_are_those_of_every_gateway(fleet):
    fleet.absorb(beat("pod-1"))
    assert fleet.size.live_servers == 1
    fleet.size.note_everywhere(7, 7)
    assert fleet.size.live_servers == 7
    # The pace depends on what this process has to take, not on what the others do.
    assert fleet.size.next_ms == 5_000
    fleet.absorb(beat("pod-2"))
    assert fleet.size.live_servers == 7


def test_a_server_silent_for_an_hour_is_no_longer_counted(fleet, clock):
    for name in ("pod-1", "pod-2"):
        fleet.absorb(beat(name))

    def hear_only_one(seconds):
        for _ in range(seconds // 10):
            clock.turn(10.0)
            fleet._swept = clock.now  # time passes; nobody was asleep
            fleet.absorb(beat("pod-1"))
            fleet.sweep()

    hear_only_one(3_590)
    assert fleet.servers["pod-2"].state is ServerState.OFFLINE
    assert fleet.size.live_servers == 2
    hear_only_one(700)  # the most of the last ten minutes has to pass as well
    assert fleet.size.live_servers == 1


def test_a_server_heard_elsewhere_is_handed_over_with_its_rates(fleet, clock):
    fleet.absorb(beat("pod-1", counters=Counters(requests=0)))
    clock.turn(5.0)
    fleet.absorb(beat("pod-1", counters=Counters(requests=500)))
    fleet.refresh_rates(fleet.servers.values())
    assert fleet.sums.totals.milli
    assert fleet.overdue(clock.now) == []
    clock.turn(6.0)
    assert [server.beat.server for server in fleet.overdue(clock.now)] == ["pod-1"]
    fleet.hand_over("pod-1")
    assert (fleet.servers, fleet.dirty, fleet.urgent, fleet.sums.totals.milli) == ({}, {}, {}, {})


def test_a_balancer_that_moves_all_pods_freezes_nothing(fleet, clock):
    for n in range(20):
        fleet.absorb(beat(f"pod-{n}"))
    for _ in range(60):
        clock.turn(1.0)
        for server in fleet.overdue(clock.now):
            fleet.hand_over(server.beat.server)
        fleet.sweep()
    assert not fleet.preservation.frozen


def take_turns(fleet, clock, beats):
    """Two processes of one name, each with its own boot."""
    for _ in range(beats):
        fleet.absorb(beat("pod-1", boot="younger-1", up_ms=int(clock.now * 1000) - 900_000))
        fleet.absorb(beat("pod-1", boot="older-001", up_ms=int(clock.now * 1000)))
        clock.turn(5.0)
        fleet.sweep()


def test_two_processes_with_one_name_are_reported_and_counted_and_neither_disturbs_the_other(fleet, clock):
    take_turns(fleet, clock, 2)
    assert fleet.servers["pod-1"].rivals == 0  # a process that was replaced may have had beats under way
    take_turns(fleet, clock, 3)
    server = fleet.servers["pod-1"]
    assert (server.beat.boot, server.rivals, fleet.size.live_servers) == ("younger-1", 1, 2)
    assert row_of(server, "gateway-1").rivals == 1
    assert "pod-1" in fleet.urgent


def test_a_duplicate_that_stops_is_forgotten(fleet, clock):
    take_turns(fleet, clock, 5)
    for _ in range(6):
        fleet.absorb(beat("pod-1", boot="younger-1", up_ms=1_000))
        clock.turn(5.0)
        fleet.sweep()
    assert fleet.servers["pod-1"].rivals == 0


def test_a_restart_leaves_no_duplicate_behind(fleet, clock):
    fleet.absorb(beat("pod-1", boot="boot-old1", sequence=10))
    fleet.absorb(beat("pod-1", boot="boot-new1", sequence=1, up_ms=100))
    fleet.absorb(beat("pod-1", boot="boot-old1", sequence=11, leaving=True))
    for _ in range(5):
        clock.turn(5.0)
        fleet.absorb(beat("pod-1", boot="boot-new1"))
        fleet.sweep()
    assert (fleet.servers["pod-1"].rivals, fleet.size.live_servers) == (0, 1)
