"""What a gateway does for pods that protect themselves: caps of retries, leases to be unready."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json

from controlplane.fleet.live import add_figures
from controlplane.gateway.metrics import exporter
from controlplane.gateway.postgres.adoption import _load_of
from controlplane.gateway.servers import calls as call_track
from controlplane.gateway.servers.figures import figures_of
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.fleet_bounds import Kept
from controlplane.gateway.servers.retry_caps import MAX_MILLI, USUAL_PER_S, cap_milli
from controlplane.gateway.servers.rows import row_of
from controlplane.gateway.servers.server import KnownServer
from fuseboard.contract.load import CallLoad, PodLoad, PriorityLoad, TierLoad
from fuseboard.contract.policy import Dependency
from fuseboard.contract.protection import CallProtection, Observe, PodProtection, Readiness, Retry
from fuseboard.contract.sync import SyncRequest, SyncResponse, decode_response
from fuseboard.contract.words import LoadLevel
from tests.controlplane.gateway.manual_gateway import (
    TurnedClock,
    beat,
    configuration,
    policy,
    post,
    ready_gateway,
)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def fleet(clock: TurnedClock) -> Fleet:
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def calling(first: int, *, name: str = "llm", **fields: Any) -> tuple[CallLoad, ...]:
    return (CallLoad(dependency=name, first_calls=first, **fields),)


def hear(fleet: Fleet, request: SyncRequest) -> None:
    fleet.absorb(request)
    fleet.refresh_rates([fleet.servers[request.server]])


def part(
    fleet: Fleet, request: SyncRequest, *, percent: int = 25, factor: int = 120, retries_per_s: int = 10
) -> dict[str, Any]:
    found = fleet.protection.part(
        request,
        servers=fleet.servers,
        milli=fleet.sums.totals.milli,
        factors={"llm": factor},
        protected=frozenset(("llm",)),
        retries_per_s=retries_per_s,
        unready_percent=percent,
        now=fleet._clock.monotonic(),
    )
    answer: dict[str, Any] = json.decode(b"{" + found.lstrip(b",") + b"}")
    return answer


# Caps of retries


def test_the_cap_divides_half_of_the_load_factor_among_the_pods() -> None:
    # The example of the design: 20 pods at 1 call per second.
    assert cap_milli(20.0, 20, 120) == 100
    assert cap_milli(4.0, 20, 120) == 20
    assert cap_milli(20.0, 20, 100) == 0
    assert cap_milli(99.9, 20, 120) == 499
    assert cap_milli(100.0, 20, 120) is None, "10 retries per second: the pods' own bound is enough"
    assert cap_milli(20.0, 0, 120) is None


@given(
    calls=st.floats(min_value=0, max_value=1e12),
    callers=st.integers(min_value=0, max_value=50_000),
    factor=st.integers(min_value=100, max_value=200),
    retries_per_s=st.integers(min_value=0, max_value=1_000),
)
def test_a_cap_is_bounded_and_the_fleet_stays_within_its_load_factor(
    calls: float, callers: int, factor: int, retries_per_s: int
) -> None:
    cap = cap_milli(calls, callers, factor, retries_per_s)
    if cap is None:
        # Then the pods' own floors, together as many as this, are within the load factor.
        assert callers == 0 or (factor - 100) / 200 * calls >= max(USUAL_PER_S, retries_per_s)
        return
    assert 0 <= cap <= MAX_MILLI
    assert callers * cap / 1000 <= (factor - 100) / 200 * calls + 1e-6


@settings(deadline=None)
@given(
    lies=st.lists(
        st.tuples(st.integers(0, 2**53), st.integers(0, 2**53), st.integers(0, 2**53)), min_size=1, max_size=5
    )
)
def test_no_number_of_a_pod_leaves_the_bounds_of_others(lies: list[tuple[int, int, int]]) -> None:
    clock = TurnedClock()
    fleet = Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)
    for first, slots, retries in lies:
        tiers = (TierLoad(limit=slots, active=slots, queued=slots, full=first),)
        load = calling(first, tiers=tiers, retries=retries, mean_ms=min(first, 10**12))
        hear(fleet, beat("liar", protection=load))
        hear(fleet, beat("honest", protection=calling(5)))
        clock.turn(5.0)
        caps = part(fleet, beat("honest", protection=calling(5))).get("retry_caps", {})
        assert all(0 <= cap <= MAX_MILLI for cap in caps.values())
    figures = add_figures([figures_of(fleet)]).protection["llm"]
    assert figures.limit <= 10_000
    assert figures.first_calls_per_s <= 2 * 10**6


def test_pods_get_the_cap_of_what_they_call_and_it_follows_the_calls(fleet: Fleet, clock: TurnedClock):
    for second in range(0, 31, 5):
        for pod in range(4):
            hear(fleet, beat(f"pod-{pod}", protection=calling(second * 2)))
        clock.turn(5.0)
    asking = beat("pod-0", protection=calling(70))
    hear(fleet, asking)
    # 4 pods, 2 calls per second each: a tenth is 0.8 retries per second, 0.2 per pod.
    assert part(fleet, asking) == {"retry_caps": {"llm": pytest.approx(200, abs=8)}}
    # Only what it reports, and only with retries.
    other = beat("pod-1", protection=calling(5, name="search"))
    assert part(fleet, other) == {}
    assert part(fleet, beat("pod-0")) == {}
    # Pods that other gateways hear count, too.
    fleet.protection.caps.elsewhere = {"llm": (400.0, 10)}
    clock.turn(1.0)
    assert part(fleet, asking) == {}


def test_floors_that_an_admin_raised_are_capped_too(fleet: Fleet, clock: TurnedClock) -> None:
    """With 1,000 retries per second allowed, the floors of 200 pods doubled the load of a dead vendor."""
    assert cap_milli(120.0, 200, 120, 1_000) == 60
    assert cap_milli(105.0, 50, 120, 100) == 210
    assert cap_milli(105.0, 50, 120, 10) is None
    assert cap_milli(10_000.0, 50, 120, 1_000) is None
    for second in (0, 10):
        for pod in range(2):
            hear(fleet, beat(f"pod-{pod}", protection=calling(second * 100)))
        clock.turn(10.0)
    asking = beat("pod-0", protection=calling(2_000))
    hear(fleet, asking)
    assert part(fleet, asking) == {}
    clock.turn(1.0)
    assert part(fleet, asking, retries_per_s=100) == {"retry_caps": {"llm": 10_000}}


def test_another_process_of_the_same_name_gets_caps_but_no_lease(fleet: Fleet, clock: TurnedClock):
    clock.turn(30.0)
    for pod in range(8):
        hear(fleet, beat(f"pod-{pod}", protection=calling(5), load=ASKS))
    rival = beat("pod-0", boot="boot-0002", up_ms=9_999_999, protection=calling(5), load=ASKS)
    fleet.absorb(rival)
    assert part(fleet, rival).keys() == {"retry_caps"}


# Figures


def test_slots_retries_and_fallbacks_are_summed_over_pods(fleet: Fleet, clock: TurnedClock):
    def load(number: int) -> tuple[CallLoad, ...]:
        slots = TierLoad(limit=25, active=10, queued=2, entered=number, full=number * 3, timed_out=number)
        return calling(
            number * 10,
            tiers=(slots, slots, slots),
            mean_ms=300,
            retries=number * 2,
            helped=number,
            no_budget=number * 4,
            fallbacks=number * 5,
            fallback_failures=number,
            observed=number,
        )

    for number in range(7):
        for pod in ("pod-1", "pod-2"):
            hear(fleet, beat(pod, protection=load(number * 5)))
        clock.turn(5.0)
    found = add_figures([figures_of(fleet)]).protection["llm"]
    assert (found.callers, found.mean_ms, found.limit, found.active, found.queued) == (2, 300, 150, 60, 12)
    assert [tier.tier for tier in found.tiers] == ["critical", "standard", "optional"]
    first = found.tiers[0]
    assert (first.limit, first.full_per_s, first.timed_out_per_s, first.entered_per_s) == (50, 6, 2, 2)
    assert (found.first_calls_per_s, found.retries_per_s, found.helped_per_s) == (20, 4, 2)
    assert (found.no_budget_per_s, found.fallbacks_per_s, found.fallback_failures_per_s) == (8, 10, 2)
    # Two gateways add up.
    both = add_figures([figures_of(fleet), figures_of(fleet)]).protection["llm"]
    assert (both.callers, both.mean_ms, both.limit, both.retries_per_s) == (4, 300, 300, 8)
    # A gateway of an older version has none.
    assert add_figures([{"live_servers": 1}]).protection == {}
    # Silent pods add nothing.
    for _ in range(40):
        clock.turn(1.0)
        fleet.sweep()
    fleet.refresh_rates(fleet.servers.values())
    assert fleet.sums.totals.milli == {}


def test_latencies_queues_and_lost_slots_are_shown_for_the_fleet(fleet: Fleet, clock: TurnedClock):
    measured = calling(
        5, p95_ms=800, wait_p95_ms=40, queue_size=48, queue_predicted=11, reclaimed=2, nested=7
    )
    hear(fleet, beat("pod-1", protection=measured))
    hear(fleet, beat("pod-2", protection=calling(5, p95_ms=400, queue_size=48, nested=1)))
    hear(fleet, beat("pod-3", protection=calling(5)))  # of an older version
    found = add_figures([figures_of(fleet), figures_of(fleet)]).protection["llm"]
    assert (found.p95_ms, found.wait_p95_ms) == (600, 40)
    assert (found.queue_size, found.queue_predicted) == (2 * 96, 2 * 11)
    assert (found.reclaimed, found.nested) == (2 * 2, 2 * 8)
    for pod in ("pod-1", "pod-2"):
        hear(fleet, beat(pod, protection=calling(5)))
    without = add_figures([figures_of(fleet)]).protection["llm"]
    assert (without.queue_size, without.queue_predicted, without.p95_ms) == (None, None, None)
    # A lie stays within bounds.
    lie = calling(5, p95_ms=10**12, queue_size=2**53, queue_predicted=2**53, reclaimed=2**53, nested=2**53)
    hear(fleet, beat("pod-1", protection=lie))
    lied = add_figures([figures_of(fleet)]).protection["llm"]
    assert (lied.p95_ms, lied.queue_size, lied.nested) == (3_600_000, 30_000, 10**9)


def test_a_restart_makes_no_negative_rate(fleet: Fleet, clock: TurnedClock):
    hear(fleet, beat(protection=calling(1_000)))
    clock.turn(5.0)
    hear(fleet, beat(boot="boot-0002", up_ms=4_000, protection=calling(3)))
    clock.turn(5.0)
    hear(fleet, beat(boot="boot-0002", up_ms=9_000, protection=calling(13)))
    assert add_figures([figures_of(fleet)]).protection["llm"].first_calls_per_s == 2.0


def test_what_is_kept_of_a_pod_is_bounded(fleet: Fleet, clock: TurnedClock):
    tiers = (TierLoad(limit=2**53, active=2**53, queued=2**53, entered=2**53, full=2**53),) * 3
    many = tuple(
        CallLoad(dependency=f"{'d' * 60}-{n}", tiers=tiers, first_calls=2**53, retries=2**53)
        for n in range(100)
    )
    for _ in range(40):
        fleet.absorb(beat("pod-1", protection=many), token="sel1")
        clock.turn(1.0)
    server = fleet.servers["pod-1"]
    assert server.beat.protection == ()
    assert len(server.calls._points) <= 6
    assert server.calls.size <= 6 * call_track.POINT_BYTES
    assert fleet.kept.bytes >= server.calls.size
    assert server.calls.counts()
    fleet.hand_over("pod-1")
    assert fleet.kept.bytes == 0
    fleet.kept = Kept(token_bytes=0)
    fleet.absorb(beat("other"), token="sel1")
    fleet.absorb(beat("pod-2", protection=many), token="sel1")
    assert fleet.servers["pod-2"].calls.size <= call_track.SPARSE_POINT_BYTES
    for name in ("pod-2", "other"):
        fleet.hand_over(name)
    assert fleet.kept.bytes == 0


@pytest.mark.parametrize("serves_node", [True, False])
def test_the_row_shows_that_an_agent_serves_a_node(fleet: Fleet, serves_node: bool):
    fleet.absorb(beat(serves_node=serves_node))
    assert row_of(fleet.servers["pod-1"]).serves_node is serves_node


def test_the_row_shows_what_the_pod_reports(fleet: Fleet, clock: TurnedClock):
    def load(errors: int, level: LoadLevel = LoadLevel.NORMAL) -> PodLoad:
        return PodLoad(pressure=820, level=level, cause="94 calls wait", waiting=94, errors=errors)

    fleet.absorb(beat(load=load(10)))
    clock.turn(5.0)
    assert not fleet.absorb(beat(load=load(60))).urgent
    assert fleet.absorb(beat(load=load(60, LoadLevel.SHED))).urgent, "a level that changed is urgent"
    row = row_of(fleet.servers["pod-1"]).load
    assert (row["pressure"], row["level"], row["cause"], row["waiting"]) == (820, "shed", "94 calls wait", 94)
    clock.turn(5.0)
    fleet.absorb(beat(load=load(110, LoadLevel.SHED)))
    assert row_of(fleet.servers["pod-1"]).load["errors_per_s"] == 10.0
    fleet.absorb(beat())
    assert row_of(fleet.servers["pod-1"]).load == {}


ASKS = PodLoad(pressure=950, level=LoadLevel.SHED_HARD, cause="late", asks_unready=True)


async def test_the_answer_carries_both(clock: TurnedClock) -> None:
    gateway = ready_gateway(clock)
    protected = policy(
        dependencies=(Dependency(name="llm", protection=CallProtection(retry=Retry())),),
        protection=PodProtection(readiness=Readiness(unready_percent=50)),
    )
    gateway.configurations["production"] = configuration(document=protected)
    fleet = gateway.fleet("production")
    # A gateway that has just started grants no lease.
    clock.turn(30.0)
    answers: list[SyncResponse] = []
    for first in (0, 5):
        for number in range(4):
            load = calling(first, p95_ms=200, queue_size=8, queue_predicted=1, reclaimed=2, nested=3)
            request = beat(f"pod-{number}", load=ASKS, protection=load)
            response = await post(gateway, request)
            assert response.status_code == 200, response.text
            answers.append(decode_response(response.content))
            fleet.refresh_rates(fleet.servers.values())
        clock.turn(5.0)
    assert answers[-1].unready_ms == 0
    assert any(answer.unready_ms == 30_000 for answer in answers)
    assert 0 <= answers[-1].retry_caps["llm"] <= MAX_MILLI
    text = exporter(gateway)(None).decode()
    assert 'fuseboard_fleet_retry_cap{dependency="llm",environment="production"}' in text
    assert 'fuseboard_gateway_unready_granted_total{environment="production"} 2.0' in text
    assert 'level="shed_hard"' in text
    of = 'dependency="llm",environment="production"'
    assert f"fuseboard_fleet_bulkhead_reclaimed{{{of}}} 8.0" in text
    assert f"fuseboard_fleet_bulkhead_nested{{{of}}} 12.0" in text
    assert f'fuseboard_fleet_adaptive_queue{{{of},kind="places"}} 32.0' in text
    assert f'fuseboard_fleet_adaptive_queue{{{of},kind="predicted"}} 4.0' in text
    assert f'fuseboard_fleet_call_seconds{{{of},kind="p95"}} 0.2' in text
    # A name that no admin configured makes no series.
    await post(gateway, beat("pod-9", protection=calling(5, name="invented")))
    fleet.refresh_rates(fleet.servers.values())
    assert "invented" not in exporter(gateway)(None).decode()
    bad = await post(gateway, beat("pod-9", protection=calling(5, name="no slug")))
    assert bad.status_code == 422
    assert "protection[0].dependency" in bad.text


async def test_what_parts_would_refuse_that_only_observe_is_counted(clock: TurnedClock) -> None:
    gateway = ready_gateway(clock)
    until_us = int((clock.wall() + 20) * 1_000_000)
    observing = PodProtection(observe=Observe(shedding_until_us=until_us))
    gateway.configurations["production"] = configuration(
        document=policy(
            dependencies=(Dependency(name="llm", protection=CallProtection(retry=Retry())),),
            protection=observing,
        )
    )
    for second in (0, 10):
        load = PodLoad(observed=second * 3)
        await post(gateway, beat("pod-1", load=load, protection=calling(second, observed=second * 2)))
        if not second:
            clock.turn(10.0)
    fleet = gateway.fleet("production")
    fleet.refresh_rates(fleet.servers.values())
    assert row_of(fleet.servers["pod-1"]).load["observed_per_s"] == 3.0
    text = exporter(gateway)(None).decode()
    assert 'fuseboard_fleet_protection_observes{environment="production",part="shedding"} 1.0' in text
    assert 'fuseboard_fleet_protection_observes{environment="production",part="retry"} 0.0' in text
    assert 'fuseboard_fleet_observed_requests_per_second{environment="production"} 3.0' in text
    assert 'fuseboard_fleet_observed_calls_per_second{dependency="llm",environment="production"} 2.0' in text
    clock.turn(10.0)
    text = exporter(gateway)(None).decode()
    assert 'fuseboard_fleet_protection_observes{environment="production",part="shedding"} 0.0' in text


def test_a_gateway_that_restarts_reports_no_errors_of_the_past(fleet: Fleet, clock: TurnedClock) -> None:
    """A row has no totals, so all errors of a pod's life were errors of the first ten seconds."""
    fleet.absorb(beat(load=PodLoad(errors=100_000, observed=7_000)))
    stored = row_of(fleet.servers["pod-1"]).load
    adopted = KnownServer(
        beat=beat(load=msgspec.convert(stored, PodLoad)),
        seen=clock.now,
        seen_wall=clock.wall(),
        next_s=5.0,
        started_wall=clock.wall() - 3_600,
        adopted=True,
    )
    again = Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)
    again.adopt(adopted)
    for errors, expected in ((100_000, 0.0), (100_050, 5.0)):
        clock.turn(10.0)
        again.absorb(beat(load=PodLoad(errors=errors, observed=errors)))
        load = row_of(again.servers["pod-1"]).load
        assert (load["errors_per_s"], load["observed_per_s"]) == (expected, expected)


def test_invented_names_push_no_dependency_out_of_the_figures(fleet: Fleet, clock: TurnedClock) -> None:
    invented = [
        tuple(CallLoad(dependency=f"invented-{group}-{number}") for number in range(100))
        for group in range(6)
    ]
    for number, names in enumerate(invented):
        for pod in range(2):
            hear(fleet, beat(f"liar-{number}-{pod}", protection=names))
    honest = beat("pod-1", protection=calling(5))
    hear(fleet, honest)
    assert "llm" not in figures_of(fleet)["protection"], "before any heartbeat says what is configured"
    part(fleet, honest)
    assert figures_of(fleet)["protection"].keys() == {"llm"}


def test_a_load_that_a_newer_gateway_wrote_stops_no_older_one() -> None:
    assert _load_of({"pressure": 5, "level": "calmer"}) is None
    assert _load_of({}) is None
    assert _load_of({"pressure": 5, "level": "shed", "slots": 3}) == PodLoad(pressure=5, level=LoadLevel.SHED)


def test_what_is_shed_of_each_priority_is_in_the_row_and_exported(clock: TurnedClock) -> None:
    gateway = ready_gateway(clock)
    fleet = gateway.fleet("production")
    for asked, shed in ((0, 0), (100, 50)):
        for name in ("pod-1", "pod-2"):
            lowest, highest = (
                PriorityLoad(priority=0, asked=asked, shed=shed),
                PriorityLoad(priority=9, asked=asked, shed=0),
            )
            hear(fleet, beat(name, load=PodLoad(priorities=(lowest, highest))))
        clock.turn(5.0)
    clock.turn(-5.0)
    row = row_of(fleet.servers["pod-1"])
    assert row.load["priority_rates"] == {"0": [20.0, 10.0], "9": [20.0, 0.0]}
    text = exporter(gateway)(None).decode()
    assert 'fuseboard_fleet_shed_per_second{environment="production",priority="0"} 20.0' in text
    assert 'fuseboard_fleet_shed_per_second{environment="production",priority="9"} 0.0' in text
