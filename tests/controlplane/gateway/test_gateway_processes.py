"""Processes under the name of another pod are bounded like new names, and divided like what is counted."""

import pytest

from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.server import KnownServer
from fuseboard.contract.sync import Counters
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, post, ready_gateway

NOTHING = Counters()


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


def known(fleet: Fleet, name: str) -> KnownServer:
    return fleet.servers[name]


async def test_a_token_brings_a_bounded_number_of_processes_with_requests_under_known_names(
    clock: TurnedClock,
) -> None:
    ready = ready_gateway(clock, new_pods_per_min=10)
    names = [f"shop-{n}" for n in range(5)]
    ready.known_names.add([(n, "production", name) for n, name in enumerate(names)], clock.now)
    fleet = ready.fleet("production")
    for _ in range(4):
        clock.turn(5.0)
        for name in names:
            assert (await post(ready, beat(name, up_ms=int(clock.now * 1000)))).status_code == 200
            for n in range(16):
                # Answered all the same: it may be the real pod, whose name another process took.
                answer = await post(ready, beat(name, boot=f"invented-{n}", up_ms=10**9))
                assert answer.status_code == 200
        fleet.sweep()
    # 10 at once, and 1 per 6 s.
    assert 5 + 10 <= fleet.size.live_servers <= 5 + 10 + 4
    assert sum(known(fleet, name).rivals for name in names) == 80


async def test_a_name_with_more_processes_than_are_counted_uses_up_no_new_names(clock: TurnedClock) -> None:
    ready = ready_gateway(clock, new_pods_per_min=30)
    await post(ready, beat("localhost", up_ms=1))
    for _ in range(4):
        for n in range(40):
            await post(ready, beat("localhost", boot=f"copied-{n:03}", up_ms=10**9))
        clock.turn(0.1)
    # One name and 16 processes of 30.
    answers = [await post(ready, beat(f"shop-{n}")) for n in range(13)]
    assert {answer.status_code for answer in answers} == {200}


async def test_restarts_and_idle_processes_use_up_no_new_names(clock: TurnedClock) -> None:
    ready = ready_gateway(clock, new_pods_per_min=2)
    await post(ready, beat("shop-1"))
    for n in range(10):
        clock.turn(0.1)
        await post(ready, beat("shop-1", boot=f"restart-{n}", up_ms=1))
        await post(ready, beat("shop-1", boot=f"older-00{n}", up_ms=10**9, counters=NOTHING))
    assert (await post(ready, beat("shop-2"))).status_code == 200


def test_a_process_adds_itself_until_it_is_counted_and_no_idle_pod(clock: TurnedClock) -> None:
    fleet = Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)
    fleet.absorb(beat("shop-1", boot="younger-1", up_ms=1_000))
    for n in range(8):
        fleet.absorb(beat(f"idle-{n}", counters=NOTHING))
    divisors = []
    for turn in range(4):
        fleet.absorb(beat("shop-1", boot="older-001", up_ms=10**7))
        divisors.append((fleet.size.live_servers, fleet.divisor_of("shop-1", "older-001")))
        clock.turn(5.0)
        fleet.absorb(beat("shop-1", boot="younger-1", up_ms=1_000 + 5_000 * turn))
        fleet.sweep()
    # While no other divisor contains it, it spends less than the one that is counted.
    assert divisors[0] == divisors[1] == (1, 2)
    assert divisors[-1] == (2, 2)
