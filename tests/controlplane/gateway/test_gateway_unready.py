"""Which pods a gateway lets be unready because of pressure."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.unready import LEASE_S
from fuseboard.contract.load import PodLoad
from fuseboard.contract.sync import Counters
from fuseboard.contract.words import LoadLevel
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat
from tests.controlplane.gateway.test_gateway_protection import part


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def fleet(clock: TurnedClock) -> Fleet:
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


ASKS = PodLoad(pressure=950, level=LoadLevel.SHED_HARD, cause="late", asks_unready=True)
UNREADY = PodLoad(pressure=950, level=LoadLevel.SHED_HARD, cause="late", asks_unready=True, unready=True)
CALM = PodLoad()


def lease(fleet: Fleet, name: str, load: PodLoad = ASKS, *, percent: int = 25, **fields: Any) -> int:
    request = beat(name, load=load, **fields)
    fleet.absorb(request)
    found: int = part(fleet, request, percent=percent).get("unready_ms", 0)
    return found


def pods(fleet: Fleet, clock: TurnedClock, count: int) -> None:
    """So many pods of a service, for longer than any lease."""
    clock.turn(LEASE_S)
    for number in range(count):
        fleet.absorb(beat(f"pod-{number}", load=CALM))


@pytest.mark.parametrize(("count", "granted"), [(3, 0), (4, 1), (7, 1), (8, 2), (20, 5)])
def test_at_most_a_quarter_of_a_service_is_unready(
    fleet: Fleet, clock: TurnedClock, count: int, granted: int
) -> None:
    pods(fleet, clock, count)
    found = [lease(fleet, f"pod-{number}") for number in range(count)]
    assert sum(ms > 0 for ms in found) == granted
    assert set(found) <= {0, 30_000}
    # Asking again renews, and changes nothing.
    clock.turn(5.0)
    again = [lease(fleet, f"pod-{number}", UNREADY if found[number] else ASKS) for number in range(count)]
    assert [ms > 0 for ms in again] == [ms > 0 for ms in found]


def test_without_readiness_in_the_policy_nobody_may_be_unready(fleet: Fleet, clock: TurnedClock):
    pods(fleet, clock, 20)
    assert lease(fleet, "pod-1", percent=0) == 0


def test_the_pod_that_asks_for_longest_comes_next(fleet: Fleet, clock: TurnedClock):
    pods(fleet, clock, 4)
    assert lease(fleet, "pod-0") > 0
    clock.turn(1.0)
    assert lease(fleet, "pod-1") == 0
    clock.turn(1.0)
    assert lease(fleet, "pod-2") == 0
    clock.turn(1.0)
    assert lease(fleet, "pod-0", CALM) == 0
    # pod-2 is heard first, and pod-1 asks for longer.
    assert lease(fleet, "pod-2") == 0
    assert lease(fleet, "pod-1") > 0


def test_a_pod_counts_until_it_reports_that_it_is_ready(fleet: Fleet, clock: TurnedClock):
    pods(fleet, clock, 4)
    assert lease(fleet, "pod-0") > 0
    clock.turn(5.0)
    assert lease(fleet, "pod-0", PodLoad(unready=True)) == 0
    assert lease(fleet, "pod-1") == 0
    assert lease(fleet, "pod-0", CALM) == 0
    assert lease(fleet, "pod-1") > 0


def test_a_lease_of_a_silent_pod_ends(fleet: Fleet, clock: TurnedClock):
    pods(fleet, clock, 5)
    assert lease(fleet, "pod-0") > 0
    clock.turn(LEASE_S - 1)
    for number in range(1, 5):
        fleet.absorb(beat(f"pod-{number}", load=CALM))
    assert lease(fleet, "pod-1") == 0
    clock.turn(2.0)
    assert lease(fleet, "pod-1") > 0


def test_a_gateway_that_just_started_waits_for_the_leases_of_its_predecessor(
    fleet: Fleet, clock: TurnedClock
) -> None:
    for number in range(4):
        fleet.absorb(beat(f"pod-{number}", load=CALM))
    assert lease(fleet, "pod-0") == 0
    # It renews a lease that a pod reports, and that one counts.
    assert lease(fleet, "pod-1", UNREADY) > 0
    for _ in range(4):
        clock.turn(LEASE_S / 3)
        for number in (2, 3):
            fleet.absorb(beat(f"pod-{number}", load=CALM))
        assert lease(fleet, "pod-0") == 0
        assert lease(fleet, "pod-1", UNREADY) > 0


def test_pods_without_a_request_and_other_services_are_no_reserve(fleet: Fleet, clock: TurnedClock):
    pods(fleet, clock, 3)
    for number in range(50):
        fleet.absorb(beat(f"invented-{number}", counters=Counters(), load=CALM))
        fleet.absorb(beat(f"other-{number}", service="search", load=CALM))
    assert lease(fleet, "pod-0") == 0


_steps = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(["ask", "calm", "silent", "leave"]), st.integers(0, 12)),
    max_size=120,
)


@settings(deadline=None, max_examples=150)
@given(count=st.integers(1, 12), percent=st.integers(0, 50), steps=_steps)
def test_no_sequence_of_heartbeats_makes_too_many_unready(
    count: int, percent: int, steps: list[tuple[int, str, int]]
) -> None:
    clock = TurnedClock()
    fleet = Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)
    pods(fleet, clock, count)
    boots = itertools.count(1)
    # A model of the pods: until when each one is unready, by the answer that it has.
    until: dict[str, float] = {}
    for number, what, passed in steps:
        clock.turn(float(passed))
        fleet.sweep()
        name, now = f"pod-{number % count}", clock.monotonic()
        before = {pod for pod, end in until.items() if end > now}
        if what == "silent":
            continue
        if what == "leave":
            lease(fleet, name, percent=percent, leaving=True)
            fleet.absorb(beat(name, boot=f"boot-again-{next(boots)}", up_ms=0, load=CALM))
            until.pop(name, None)
            continue
        unready = name in before
        load = PodLoad(asks_unready=what == "ask", unready=unready, pressure=900)
        ms = lease(fleet, name, load, percent=percent)
        until[name] = now + ms / 1000
        online = sum(server.state == "online" for server in fleet.servers.values())
        granted_now = ms > 0 and not unready
        if granted_now:
            assert online >= 4
            assert len(before) + 1 <= online * percent // 100
            assert fleet.protection.unready.held("checkout", now) <= online * percent // 100


def test_a_heartbeat_does_not_look_at_every_pod_that_asks(fleet: Fleet, clock: TurnedClock) -> None:
    """With 10,000 pods that ask, each heartbeat took 6 ms: more than a gateway has."""
    pods(fleet, clock, 400)
    for number in range(400):
        lease(fleet, f"pod-{number}")
    service = fleet.protection.unready._by_service["checkout"]
    looks = 0

    class Watched(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    service.asking = Watched(service.asking)
    for number in range(400):
        lease(fleet, f"pod-{number}")
    assert looks == 0
    clock.turn(1.0)
    for number in range(400):
        lease(fleet, f"pod-{number}")
    assert looks <= 2 * 11, "a few times per second, for all of them"
    assert fleet.protection.unready.held("checkout", clock.now) == 100


def test_a_free_place_goes_to_the_pod_that_asked_for_longest(fleet: Fleet, clock: TurnedClock) -> None:
    pods(fleet, clock, 4)
    assert lease(fleet, "pod-0")
    clock.turn(1.0)
    for name in ("pod-1", "pod-2"):
        assert not lease(fleet, name)
        clock.turn(1.0)
    for _ in range(30):
        # However often pods change their minds in one second.
        lease(fleet, "pod-0", CALM)
        assert not lease(fleet, "pod-2"), "the other one asked first"
    clock.turn(1.0)
    assert not lease(fleet, "pod-2")
    assert lease(fleet, "pod-1")
    assert fleet.protection.unready.held("checkout", clock.now) == 1


def test_a_lease_lasts_for_three_heartbeats(fleet: Fleet, clock: TurnedClock) -> None:
    """In a very large fleet, heartbeats are far apart, and each lease ended before it was renewed."""
    pods(fleet, clock, 4)
    fleet.size.next_ms = 25_000
    assert lease(fleet, "pod-0") == 75_000
    clock.turn(25.0)
    assert lease(fleet, "pod-0", UNREADY) == 75_000
    assert not lease(fleet, "pod-1")
    fleet.size.next_ms = 600_000
    assert lease(fleet, "pod-0", UNREADY) == 600_000


def test_nothing_is_kept_of_pods_that_asked_and_fell_silent(fleet: Fleet, clock: TurnedClock) -> None:
    pods(fleet, clock, 8)
    for number in range(8):
        lease(fleet, f"pod-{number}")
    for _ in range(3):
        clock.turn(LEASE_S)
        fleet.sweep()
    assert fleet.protection.unready._by_service == {}


def test_services_without_a_place_are_not_put_in_order(fleet: Fleet, clock: TurnedClock) -> None:
    """Each pod can name a service of its own. 50,000 of them were put in order every second."""
    for n in range(50):
        fleet.absorb(beat(f"pod-{n}", service=f"service-{n}", load=ASKS))
        assert lease(fleet, f"pod-{n}", service=f"service-{n}") == 0
    clock.turn(2.0)
    assert lease(fleet, "pod-0", service="service-0") == 0
    assert {known._ranked for known in fleet.protection.unready._by_service.values()} == {0}
