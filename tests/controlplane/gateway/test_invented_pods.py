"""Security finding 6: one token of a pod invents pods, and signs off in the name of others."""

from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async

from controlplane.fleet.models import ServerState
from controlplane.gateway.postgres.connections import conninfo
from controlplane.gateway.postgres.loading import read
from controlplane.gateway.postgres.peers import NAMES_AGAIN_S, Peers
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.known_names import KnownNames
from controlplane.gateway.servers.rows import row_of
from fuseboard.contract.sync import Counters, DependencyCounters
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, post, ready_gateway
from tests.waiting import eventually

NOTHING = Counters()


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def fleet(clock: TurnedClock) -> Fleet:
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def test_pods_that_never_counted_a_request_divide_no_share(fleet: Fleet, clock: TurnedClock) -> None:
    for n in range(3):
        fleet.absorb(beat(f"shop-{n}"))
    for n in range(400):
        fleet.absorb(beat(f"invented-{n}", counters=NOTHING))
    fleet.sweep()
    assert fleet.size.live_servers == 3
    # Their heartbeats still cost time, so the pace of all pods depends on them.
    crowded = Fleet("production", clock, beat_ms=5, beats_per_s=2)
    for n in range(400):
        crowded.absorb(beat(f"invented-{n}", counters=NOTHING))
    assert crowded.size.next_ms == 200_000
    # A pod without a request divides by all pods, so that an idle fleet that begins adds up to a limit.
    assert fleet.divisor_of("shop-1", "boot-0001") == 3
    assert fleet.divisor_of("invented-7", "boot-0001") == 403
    fleet.size.note_everywhere(5, 900)
    assert fleet.divisor_of("shop-1", "boot-0001") == 5
    assert fleet.divisor_of("invented-7", "boot-0001") == 900


@pytest.mark.parametrize(
    "counted",
    [
        Counters(requests=1),
        Counters(decided_locally=1),
        Counters(dependencies=(DependencyCounters(dependency="llm", ok=1),)),
    ],
)
def test_a_pod_counts_from_the_heartbeat_with_its_first_request(fleet: Fleet, counted: Counters) -> None:
    fleet.absorb(beat("shop-1"))
    fleet.absorb(beat("shop-2", counters=NOTHING))
    assert (fleet.size.live_servers, row_of(fleet.servers["shop-2"]).spending) == (1, 0)
    # At once, also at the other gateways: its row is urgent.
    fleet.urgent.clear()
    assert fleet.absorb(beat("shop-2", counters=counted)).urgent
    assert (fleet.size.live_servers, row_of(fleet.servers["shop-2"]).spending) == (2, 1)
    # It stays one while it restarts.
    fleet.absorb(beat("shop-2", boot="boot-0002", up_ms=100, counters=NOTHING))
    fleet.sweep()
    assert fleet.size.live_servers == 2


def test_processes_invented_under_a_real_name_divide_no_share(fleet: Fleet, clock: TurnedClock) -> None:
    fleet.absorb(beat("shop-1", up_ms=1_000))
    for _ in range(5):
        clock.turn(5.0)
        fleet.absorb(beat("shop-1", up_ms=int(clock.now * 1000) - 999_000))
        for n in range(10):
            fleet.absorb(beat("shop-1", boot=f"invented-{n}", up_ms=10**9, counters=NOTHING))
        fleet.sweep()
    assert fleet.servers["shop-1"].rivals == 10
    assert fleet.size.live_servers == 1


def test_a_pod_whose_name_was_taken_divides_by_no_invented_pod(fleet: Fleet, clock: TurnedClock) -> None:
    for n in range(3):
        fleet.absorb(beat(f"shop-{n}"))
    for n in range(400):
        fleet.absorb(beat(f"invented-{n}", counters=NOTHING))
    # More often than boots are remembered as replaced.
    for n in range(9):
        fleet.absorb(beat("shop-1", boot=f"invented-{n}", up_ms=0, counters=NOTHING))
        clock.turn(3.0)
    for _ in range(6):
        fleet.absorb(beat("shop-1"))
        assert fleet.divisor_of("shop-1", "boot-0001") == 3
        clock.turn(5.0)
        fleet.sweep()
    # The pod that shares its name counts too.
    assert fleet.divisor_of("shop-1", "invented-8") == 404


def test_a_second_process_of_a_name_adds_itself_before_it_is_counted(
    fleet: Fleet, clock: TurnedClock
) -> None:
    for n in range(3):
        fleet.absorb(beat(f"shop-{n}"))
    for n in range(400):
        fleet.absorb(beat(f"invented-{n}", counters=NOTHING))
    for _ in range(5):
        for boot in ("boot-0002", "boot-0003"):
            fleet.absorb(beat("shop-1", boot=boot, up_ms=10**9))
        assert fleet.divisor_of("shop-1", "boot-0003") == 5
        clock.turn(5.0)
        for n in range(3):
            fleet.absorb(beat(f"shop-{n}"))
        fleet.sweep()
    assert fleet.divisor_of("shop-1", "boot-0001") == 5


def test_the_silence_of_invented_pods_hides_no_pod_that_stopped(fleet: Fleet, clock: TurnedClock) -> None:
    real = [f"shop-{n}" for n in range(12)]
    for name in real:
        fleet.absorb(beat(name))
    for n in range(50):
        fleet.absorb(beat(f"invented-{n}", counters=NOTHING))
    for second in range(120):
        clock.turn(1.0)
        if second % 5 == 0:
            for name in real[1:]:
                fleet.absorb(beat(name))
        fleet.sweep()
    assert not fleet.preservation.frozen
    assert fleet.servers["shop-0"].state is ServerState.OFFLINE


async def test_a_token_brings_a_bounded_number_of_new_names_per_minute(
    clock: TurnedClock, caplog: pytest.LogCaptureFixture
) -> None:
    ready = ready_gateway(clock, new_pods_per_min=10)
    ready.known_names.add([(7, "production", "moved-here")], clock.now)
    answers = [await post(ready, beat(f"invented-{n}")) for n in range(40)]
    assert [answer.status_code for answer in answers].count(200) == 10
    refused = answers[-1]
    assert refused.status_code == 429
    assert "FUSEBOARD_NEW_PODS_PER_MIN" in refused.json()["detail"]
    # 30 wait and 6 s free one place: they must not all return with the first.
    assert int(refused.headers["retry-after"]) == 60
    # Names that any gateway knows are never refused.
    for known in ("invented-3", "moved-here"):
        assert (await post(ready, beat(known))).status_code == 200
    assert ready.fleets["production"].new_pods_refused() == 30
    assert caplog.text.count("gateway.new_pods_refused") == 1
    clock.turn(61.0)
    assert (await post(ready, beat("invented-39"))).status_code == 200
    assert ready.fleets["production"].new_pods_refused() == 0


async def test_a_gateway_that_starts_knows_every_name_in_postgres(gateway: Any, database: Any) -> None:
    await post(gateway, beat("shop-1", counters=NOTHING))
    row = "SELECT spending FROM fleet_server WHERE name = 'shop-1'"
    await eventually(lambda: gateway.known_names.has("production", "shop-1"))
    assert await (await database.execute(row)).fetchone() == (0,)
    await gateway.stop()
    # As a new process: with its first reading, not with the look of a second later.
    reading = await sync_to_async(read)({}, with_servers=True, gateway="another")
    assert [name for _, _, name in reading.names] == ["shop-1"]
    again = ready_gateway()
    again.take(reading)
    assert again.known_names.has("production", "shop-1")


async def test_names_are_read_once_and_again_after_an_hour(
    gateway: Any, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        await post(gateway, beat(f"shop-{n}", counters=NOTHING))
    await eventually(lambda: all(gateway.known_names.has("production", f"shop-{n}") for n in range(3)))
    names = KnownNames()
    peers = Peers({}, names, clock, gateway="another")
    seen: list[bool] = []
    original = KnownNames.add

    def add(self: KnownNames, rows: Any, now: float) -> None:
        seen.append(names.has("production", "shop-0"))
        original(self, rows, now)

    async with await psycopg.AsyncConnection.connect(conninfo("test"), autocommit=True) as connection:
        await peers.look(connection)
        assert names.has("production", "shop-2")
        await connection.execute("DELETE FROM fleet_server WHERE name = 'shop-1'")
        clock.turn(NAMES_AGAIN_S + 1)
        monkeypatch.setattr("controlplane.gateway.postgres.peers._CHUNK", 1)
        monkeypatch.setattr(KnownNames, "add", add)
        await peers.look(connection)
    # Known while the two rows are read one by one.
    assert len(seen) >= 2
    assert all(seen)
    assert [names.has("production", f"shop-{n}") for n in range(3)] == [True, False, True]


def test_names_of_deleted_rows_are_forgotten_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.gateway.servers.known_names.MAX_NAMES", 2)
    names = KnownNames()
    names.add([(30_000 + n, "production", f"pod-{n}") for n in range(5)], 100.0)
    assert [names.has("production", f"pod-{n}") for n in range(5)] == [True, True, False, False, False]
    # Rows that another gateway had numbered before can follow for some seconds.
    assert (names.read_from(105.0), names.read_from(120.0)) == (10_004, 30_004)
    others = KnownNames()
    others.add([(30_009, "production", "pod-4")], 130.0)
    names.replace(others)
    assert names.has("production", "pod-4")
    assert not names.has("production", "pod-0")


def test_a_process_signs_off_for_itself_only(fleet: Fleet) -> None:
    fleet.absorb(beat("shop-1"))
    fleet.absorb(beat("shop-1", boot="invented-1", up_ms=0, leaving=True))
    assert fleet.servers["shop-1"].state is ServerState.ONLINE
    fleet.absorb(beat("shop-1", leaving=True))
    assert fleet.servers["shop-1"].state is ServerState.GONE


def test_a_pod_whose_name_another_process_took_and_left_comes_back_by_itself(
    fleet: Fleet, clock: TurnedClock
) -> None:
    """The younger process has the name, so a token can take a name before it signs off."""
    fleet.absorb(beat("shop-1"))
    fleet.absorb(beat("shop-1", boot="invented-1", up_ms=0))
    fleet.absorb(beat("shop-1", boot="invented-1", up_ms=0, leaving=True))
    for _ in range(4):
        clock.turn(5.0)
        fleet.absorb(beat("shop-1", up_ms=int(clock.now * 1000)))
        fleet.sweep()
    server = fleet.servers["shop-1"]
    assert (server.state, server.beat.boot, server.rivals) == (ServerState.ONLINE, "boot-0001", 0)


def test_a_process_that_takes_a_name_and_signs_off_shrinks_no_share(fleet: Fleet, clock: TurnedClock) -> None:
    """Neither while it has the name, nor after it."""
    fleet.absorb(beat("shop-1"))
    fleet.absorb(beat("shop-2"))
    fleet.absorb(beat("shop-1", boot="invented-1", up_ms=0, counters=NOTHING))
    for turn in range(12):
        clock.turn(5.0)
        fleet.absorb(beat("shop-1", up_ms=int(clock.now * 1000)))
        fleet.absorb(beat("shop-2", up_ms=int(clock.now * 1000)))
        if turn < 6:
            fleet.absorb(beat("shop-1", boot="invented-1", up_ms=turn * 5_000, counters=NOTHING))
        elif turn == 6:
            fleet.absorb(beat("shop-1", boot="invented-1", up_ms=30_000, leaving=True, counters=NOTHING))
        fleet.sweep()
        assert (fleet.servers["shop-1"].spending, fleet.size.live_servers) == (1, 2)
        assert fleet.divisor_of("shop-1", "boot-0001") == fleet.divisor_of("shop-2", "boot-0001") == 2
    assert fleet.servers["shop-1"].beat.boot == "boot-0001"


def test_a_process_that_spends_under_the_name_of_an_idle_one_is_counted(
    fleet: Fleet, clock: TurnedClock
) -> None:
    fleet.absorb(beat("shop-1"))
    for turn in range(4):
        clock.turn(5.0)
        fleet.absorb(beat("shop-1"))
        fleet.absorb(beat("shop-2", boot="idle-0001", up_ms=5_000 * turn, counters=NOTHING))
        fleet.absorb(beat("shop-2", boot="older-001", up_ms=10**7))
        fleet.sweep()
    assert fleet.servers["shop-2"].beat.boot == "idle-0001"
    assert (fleet.servers["shop-2"].spending, fleet.size.live_servers) == (1, 2)
    assert fleet.divisor_of("shop-1", "boot-0001") == fleet.divisor_of("shop-2", "older-001") == 2
    # The idle one is not counted, so it begins with a smaller share.
    assert fleet.divisor_of("shop-2", "idle-0001") == 3


def test_a_process_with_requests_is_counted_although_others_filled_its_name(
    fleet: Fleet, clock: TurnedClock
) -> None:
    for turn in range(5):
        clock.turn(5.0)
        fleet.absorb(beat("shop-1", boot="younger-1", up_ms=5_000 * turn))
        for n in range(20):
            fleet.absorb(beat("shop-1", boot=f"invented-{n}", up_ms=10**9, counters=NOTHING))
        fleet.absorb(beat("shop-1", boot="older-001", up_ms=10**7))
        fleet.sweep()
    assert fleet.size.live_servers == 2


@pytest.mark.parametrize(
    "late", [{"boot": "owner-001", "sequence": 14}, {"boot": "unknown-1", "leaving": True}]
)
def test_a_name_that_was_left_continues_with_the_process_that_was_counted_only(
    fleet: Fleet, clock: TurnedClock, late: dict[str, Any]
) -> None:
    for turn in range(5):
        clock.turn(5.0)
        fleet.absorb(beat("shop-1", boot="owner-001", sequence=16 + turn, up_ms=5_000 * turn))
        fleet.absorb(beat("shop-1", boot="other-001", up_ms=10**7))
    fleet.absorb(beat("shop-1", boot="owner-001", sequence=21, leaving=True))
    fleet.absorb(beat("shop-1", **late))
    server = fleet.servers["shop-1"]
    assert (server.state, server.beat.boot, server.beat.sequence) == (ServerState.GONE, "owner-001", 21)
    fleet.absorb(beat("shop-1", boot="other-001", up_ms=10**7))
    assert (server.state, server.beat.boot) == (ServerState.ONLINE, "other-001")
    assert server.rivals == 0


def test_a_second_process_that_signs_off_is_counted_no_more(fleet: Fleet, clock: TurnedClock) -> None:
    for turn in range(4):
        clock.turn(5.0)
        fleet.absorb(beat("shop-1", boot="owner-001", up_ms=5_000 * turn))
        fleet.absorb(beat("shop-1", boot="other-001", up_ms=10**7))
    server = fleet.servers["shop-1"]
    assert (server.rivals, server.spending) == (1, 2)
    fleet.absorb(beat("shop-1", boot="other-001", up_ms=10**7, leaving=True))
    assert (server.rivals, server.spending) == (0, 1)
