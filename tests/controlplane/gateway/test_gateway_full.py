"""A full fleet: which pod makes room for a new one, and what is kept of it."""

import pytest

from controlplane.fleet.models import ServerState
from controlplane.gateway.postgres.flush import MAX_AT_ONCE, Flusher
from controlplane.gateway.servers.fleet import Fleet, FleetFull
from fuseboard.contract.sync import BreakerView, Counters
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, ready_gateway

NOTHING = Counters()
MAX_SERVERS_NAME = "controlplane.gateway.servers.fleet.MAX_SERVERS"


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def fleet(clock: TurnedClock, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(MAX_SERVERS_NAME, 10)
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def counted(fleet: Fleet, clock: TurnedClock, name: str) -> None:
    """A pod without a request whose heartbeats count something all the same."""
    for number in range(4):
        fleet.absorb(beat(name, counters=Counters(unknown_tenants=1_000 * number)))
        clock.turn(3.0)
    fleet.refresh_rates(fleet.dirty.values())
    assert fleet.sums.totals.milli["unknown_tenants", ""] > 0


def test_a_full_fleet_makes_room_for_a_new_pod_and_drops_no_pod_that_counted_a_request(
    fleet: Fleet, clock: TurnedClock, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.absorb(beat("shop-1"))
    for n in range(30):
        fleet.absorb(beat(f"invented-{n}", counters=NOTHING))
        clock.turn(0.1)
    fleet.absorb(beat("shop-2"))
    assert len(fleet.servers) == 10
    assert {"shop-1", "shop-2", "invented-29"} <= fleet.servers.keys()
    assert (fleet.dropped, caplog.text.count("fleet.full")) == (22, 1)
    for n in range(3, 11):
        fleet.absorb(beat(f"shop-{n}"))
    with pytest.raises(FleetFull):
        fleet.absorb(beat("shop-11"))


def test_what_a_dropped_pod_counted_is_subtracted_once(fleet: Fleet, clock: TurnedClock) -> None:
    counted(fleet, clock, "invented-0")
    counted(fleet, clock, "invented-1")
    alone = fleet.sums.totals.milli["unknown_tenants", ""] // 2
    fleet.servers["invented-0"].may_have_row = True
    for n in range(9):
        fleet.absorb(beat(f"shop-{n}"))
    assert fleet.dropped == 1
    for _ in range(2):
        fleet.refresh_rates(fleet.dirty.values())
        assert fleet.sums.totals.milli["unknown_tenants", ""] == alone
    fleet.absorb(beat("shop-9"))
    fleet.refresh_rates(fleet.dirty.values())
    assert ("unknown_tenants", "") not in fleet.sums.totals.milli


async def test_a_pod_that_is_handed_over_while_it_is_written_is_subtracted_once() -> None:
    ready = ready_gateway(clock := TurnedClock())
    fleet = ready.fleet("production")
    flusher = Flusher(ready.fleets, ready.settings, ready.counts, ready.clock)
    counted(fleet, clock, "shop-1")
    batch = flusher._take(every=True)
    # What it counted changes before its row is made.
    fleet.absorb(beat("shop-1", counters=Counters(unknown_tenants=50_000)))
    fleet.hand_over("shop-1")
    await flusher._rows(batch)
    assert fleet.sums.totals.milli == {}


def test_the_row_of_a_dropped_pod_does_not_stay_online_and_little_is_kept_of_it(
    fleet: Fleet, clock: TurnedClock
) -> None:
    counted(fleet, clock, "invented-0")
    breakers = (BreakerView(dependency="llm"),)
    for turn in range(5):
        clock.turn(5.0)
        fleet.absorb(beat("invented-0", up_ms=5_000 * turn, counters=NOTHING, breakers=breakers))
        fleet.absorb(beat("invented-0", boot="older-001", up_ms=10**7, counters=NOTHING))
    server = fleet.servers["invented-0"]
    assert server.rivals == 1
    server.may_have_row = True
    for n in range(10):
        fleet.absorb(beat(f"shop-{n}"))
    dropped = fleet.dirty["invented-0"]
    assert dropped is fleet.urgent["invented-0"]
    assert dropped.state is ServerState.GONE
    assert (dropped.track.size, dropped.beat.breakers, dropped.rivals_heard) == (0, (), None)
    assert (dropped.rivals, dropped.retired, dropped.breaker_rows) == (0, [], {})


def test_nothing_is_kept_of_dropped_pods_that_have_no_row_while_postgres_is_down(fleet: Fleet) -> None:
    for n in range(1_000):
        fleet.absorb(beat(f"invented-{n}", counters=NOTHING))
    assert (len(fleet.servers), len(fleet.dirty), len(fleet.urgent)) == (10, 10, 10)


async def test_a_pod_whose_row_was_sent_may_have_one() -> None:
    ready = ready_gateway()
    fleet = ready.fleet("production")
    flusher = Flusher(ready.fleets, ready.settings, ready.counts, ready.clock)
    fleet.absorb(beat("shop-1"))
    server = fleet.servers["shop-1"]
    assert not server.may_have_row

    async def write_in_time(rows: list[object]) -> bool:
        assert server.may_have_row
        return True

    flusher._write_in_time = write_in_time  # type: ignore[method-assign, assignment]
    batch = flusher._take(every=True)
    assert await flusher._write_rows(batch, await flusher._rows(batch), within_s=1.0) == 1


def test_a_token_that_fills_a_fleet_with_requests_locks_out_no_other_token(fleet: Fleet) -> None:
    fleet.absorb(beat("shop-0"), token="real")
    for n in range(9):
        fleet.absorb(beat(f"invented-{n}"), token="stolen")
    for n in range(1, 5):
        fleet.absorb(beat(f"shop-{n}"), token="real")
        fleet.absorb(beat("invented-7"), token="stolen")
    names = set(fleet.servers)
    assert names == {f"shop-{n}" for n in range(5)} | {f"invented-{n}" for n in (4, 5, 6, 7, 8)}
    # Each has half of the fleet: neither takes from the other.
    for token in ("real", "stolen"):
        with pytest.raises(FleetFull):
            fleet.absorb(beat("another"), token=token)
    assert set(fleet.servers) == names


def test_a_pod_that_is_heard_makes_those_leave_that_were_only_read_back(
    fleet: Fleet, clock: TurnedClock
) -> None:
    other = Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)
    for n in range(10):
        other.absorb(beat(f"invented-{n}"), token="stolen")
        server = other.servers[f"invented-{n}"]
        server.kept_for = ""
        fleet.adopt(server)
    for n in range(5):
        fleet.absorb(beat(f"shop-{n}"), token="real")
    assert {f"shop-{n}" for n in range(5)} <= fleet.servers.keys()
    assert len(fleet.servers) == 10


async def test_a_batch_is_bounded_and_what_was_not_written_comes_after_the_others() -> None:
    """Every second, all waiting rows were prepared again, although Postgres took only a part of them."""
    ready = ready_gateway()
    fleet = ready.fleet("production")
    flusher = Flusher(ready.fleets, ready.settings, ready.counts, ready.clock)
    for n in range(2 * MAX_AT_ONCE + 1):
        fleet.absorb(beat(f"shop-{n}"))
    seen = []
    for _ in range(3):
        [batch] = flusher._take(every=False)
        assert len(await flusher._rows([batch])) <= MAX_AT_ONCE
        seen += batch.names
        batch.put_back_rows()
    assert len(set(seen)) == 2 * MAX_AT_ONCE + 1
    assert len(fleet.dirty) == len(fleet.urgent) == 2 * MAX_AT_ONCE + 1
    [last] = flusher._take(every=True)
    assert len(last.servers) == 2 * MAX_AT_ONCE + 1
    assert (fleet.dirty, fleet.urgent) == ({}, {})
