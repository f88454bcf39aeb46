"""From cumulative counters to rates."""

import pytest

from controlplane.fleet.live import add_figures
from controlplane.gateway.servers.figures import figures_of
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.rates import NOTHING, Contribution, Totals, percentile_us
from fuseboard.contract.load import CallLoad
from fuseboard.contract.sync import (
    LATENCY_EDGES_US,
    Counters,
    DependencyCounters,
    RuleCounters,
    StoreCounters,
    TenantCounters,
)
from fuseboard.contract.words import Reason
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat


@pytest.fixture
def clock():
    return TurnedClock()


@pytest.fixture
def fleet(clock):
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def figures(fleet):
    fleet.refresh_rates(fleet.servers.values())
    return figures_of(fleet)


def counted(requests, refused=0):
    return Counters(requests=requests, refused={Reason.QUOTA: refused})


def test_a_rate_is_the_count_between_two_heartbeats(fleet, clock):
    fleet.absorb(beat(counters=counted(1_000_000)))
    assert figures(fleet)["requests_per_s"] == 0.0
    clock.turn(5.0)
    fleet.absorb(beat(counters=counted(1_000_500, refused=50)))
    found = figures(fleet)
    assert found["requests_per_s"] == 100.0
    assert found["refused_per_s"] == 10.0
    assert found["refused_by_reason"] == {"quota": 10.0}


def test_a_replayed_heartbeat_counts_nothing_twice(fleet, clock):
    fleet.absorb(beat(sequence=1, counters=counted(0)))
    clock.turn(5.0)
    again = beat(sequence=2, counters=counted(500))
    fleet.absorb(again)
    once = figures(fleet)
    fleet.absorb(again)
    fleet.absorb(beat(sequence=1, counters=counted(0)))
    assert figures(fleet) == once


def test_a_lost_heartbeat_loses_no_count(fleet, clock):
    fleet.absorb(beat(counters=counted(0)))
    clock.turn(10.0)
    fleet.absorb(beat(counters=counted(1_000)))
    assert figures(fleet)["requests_per_s"] == 100.0


def test_a_heartbeat_that_waited_for_a_stopped_gateway_makes_no_spike(fleet, clock):
    """S2-13: 361 requests/s, because the counts of a gap were divided by the time to the next heartbeat."""
    fleet.absorb(beat(up_ms=100_000, counters=counted(0)))
    clock.turn(47.0)
    fleet.absorb(beat(up_ms=105_000, counters=counted(500)))
    clock.turn(4.1)
    fleet.absorb(beat(up_ms=151_100, counters=counted(5_110)))
    assert 99.0 < figures(fleet)["requests_per_s"] < 101.0


@pytest.mark.parametrize("every_s", [1, 2, 3, 5])
def test_no_rate_jumps_in_the_minute_after_a_gateway_was_stopped(fleet, clock, every_s):
    """All heartbeats of 47 s wait in the socket and arrive together."""

    def heard(second):
        calls = (CallLoad(dependency="llm", first_calls=100 * second),)
        up_ms = 3_600_000 + 1000 * second
        fleet.absorb(beat(up_ms=up_ms, counters=counted(100 * second), protection=calls))

    for second in range(0, 20, every_s):
        heard(second)
        clock.turn(every_s)
    waited = range(20, 67, every_s)
    clock.turn(67 - 20)
    rates = []
    for second in waited:
        heard(second)
        clock.turn(0.01)
    for second in range(waited[-1] + every_s, 120, every_s):
        clock.turn(every_s)
        heard(second)
        found = figures(fleet)
        rates += [found["requests_per_s"], found["protection"]["llm"]["first_calls_per_s"]]
    assert max(rates) < 110.0
    assert rates[-1] == 100.0


def test_a_restart_makes_no_negative_rate_and_counts_from_its_start(fleet, clock):
    fleet.absorb(beat(counters=counted(50_000)))
    clock.turn(5.0)
    fleet.absorb(beat(boot="boot-0002", up_ms=4_000, counters=counted(400)))
    assert figures(fleet)["requests_per_s"] == 100.0


def test_a_counter_that_falls_makes_no_negative_rate(fleet, clock):
    fleet.absorb(beat(counters=counted(50_000)))
    clock.turn(5.0)
    fleet.absorb(beat(counters=counted(10)))
    assert figures(fleet)["requests_per_s"] == 0.0
    clock.turn(5.0)
    fleet.absorb(beat(counters=counted(510)))
    assert figures(fleet)["requests_per_s"] == 100.0


def test_frequent_heartbeats_are_smoothed_over_seconds(fleet, clock):
    for n in range(100):
        fleet.absorb(beat(counters=counted(n * 10 + (50 if n % 2 else 0))))
        clock.turn(0.1)
    assert 85 <= figures(fleet)["requests_per_s"] <= 115


def test_a_silent_server_no_longer_adds_to_the_rates(fleet, clock):
    fleet.absorb(beat(counters=counted(0)))
    clock.turn(5.0)
    fleet.absorb(beat(counters=counted(500)))
    assert figures(fleet)["requests_per_s"] == 100.0
    for _ in range(30):
        clock.turn(1.0)
        fleet.sweep()
    assert figures(fleet)["requests_per_s"] == 0.0
    assert fleet.sums.totals.milli == {}


def leave(fleet, *names):
    for name in names:
        fleet.absorb(beat(name, leaving=True))
        figures(fleet)
    assert fleet.sums.totals.milli == {}


def test_two_pods_that_hardly_count_end_without_an_error(fleet, clock):
    """Less than a thousandth per second of each: the sum was 0, and could be taken away once only."""
    for number in range(3):
        for name in ("pod-1", "pod-2"):
            fleet.absorb(beat(name, counters=counted(number)))
        figures(fleet)
        clock.turn(2_000.0)
    leave(fleet, "pod-1", "pod-2")


def test_two_pods_whose_calls_take_no_millisecond_end_without_an_error(fleet, clock):
    for _ in range(2):
        for name in ("pod-1", "pod-2"):
            fleet.absorb(beat(name, protection=(CallLoad(dependency="llm", mean_ms=0),)))
        figures(fleet)
        clock.turn(10.0)
    leave(fleet, "pod-1", "pod-2")


def test_dependencies_and_the_store_are_summed_over_servers(fleet, clock):
    def counters(n):
        latency = tuple(n * 100 if edge == 500 else 0 for edge in (*LATENCY_EDGES_US, 0))
        return Counters(
            dependencies=(
                DependencyCounters(
                    dependency="llm",
                    ok=n * 50,
                    failure=n * 10,
                    slow=n * 5,
                    refused={Reason.BREAKER_OPEN: n * 20, Reason.PROBE_BUSY: n * 5},
                ),
            ),
            store=StoreCounters(timeouts=n * 5, errors=n * 10, latency=latency),
            decided_locally=n * 15,
            unknown_tenants=n * 30,
        )

    for n in range(2):
        for server in ("pod-1", "pod-2"):
            fleet.absorb(beat(server, counters=counters(n)))
        clock.turn(5.0 * (1 - n))
    found = figures(fleet)
    assert found["dependencies"] == {
        "llm": {"calls_per_s": 26.0, "failures_per_s": 4.0, "slow_per_s": 2.0, "refused_per_s": 10.0}
    }
    assert found["store"] == {
        "p50_us": 375,
        "p99_us": 498,
        "asked_per_s": 0.0,
        "timeouts_per_s": 2.0,
        "errors_per_s": 4.0,
        "primaries": 0,
        "primaries_down": 0,
    }
    assert (found["decided_locally_per_s"], found["unknown_tenants_per_s"]) == (6.0, 12.0)


def test_the_twenty_tenants_refused_most_are_listed_then_the_busiest(fleet, clock):
    def counters(n):
        tenants = [TenantCounters(tenant=f"t{i:02}", allowed=n * 5 * i) for i in range(30)]
        tenants.append(TenantCounters(tenant="refused", allowed=n * 5, refused=n * 10))
        return Counters(requests=10**6 + n * 100_000, tenants=tuple(tenants))

    fleet.absorb(beat(counters=counters(1)))
    clock.turn(5.0)
    fleet.absorb(beat(counters=counters(2)))
    tenants = figures(fleet)["tenants"]
    assert len(tenants) == 20
    assert tenants[0] == {"tenant": "refused", "requests_per_s": 3.0, "refused_per_s": 2.0}
    assert [row["tenant"] for row in tenants[1:3]] == ["t29", "t28"]


def test_rules_have_rates_for_the_busiest_tenants_and_for_all_together(fleet, clock):
    def counted(n):
        acme = (RuleCounters(rule="requests", refused=n * 5), RuleCounters(rule="trial", asked=n, shadow=n))
        tenants = (
            TenantCounters(tenant="acme", allowed=100 + n * 45, refused=n * 5, rules=acme),
            TenantCounters(tenant="late", allowed=n * 10, rules=(RuleCounters(rule="requests"),) * (n > 1)),
        )
        whole = (RuleCounters(rule="requests", asked=500 + n * 100, refused=n * 5),)
        return Counters(requests=1_000 + n * 60, tenants=tenants, rules=whole)

    for n in (1, 2):
        fleet.absorb(beat(counters=counted(n)))
        clock.turn(5.0)
    found = [tuple(row.values()) for row in figures(fleet)["rules"]]
    # Of the tenant that was told by rule for the first time nothing is known yet.
    assert found == [
        ("", "requests", 20.0, 1.0, 0.0),
        ("acme", "requests", 10.0, 1.0, 0.0),
        ("acme", "trial", 0.2, 0.0, 0.2),
    ]
    fleet.absorb(beat(counters=counted(3)))
    assert ("late", "requests", 2.0, 0.0, 0.0) in [tuple(row.values()) for row in figures(fleet)["rules"]]


def test_rules_report_what_is_spent_from_fleet_leases_and_since_when(fleet, clock):
    def counted(n, leased):
        rule = RuleCounters(rule="requests", leased=leased)
        acme = TenantCounters(tenant="acme", allowed=n * 100, rules=(rule,))
        return Counters(requests=n * 100, tenants=(acme,))

    def seen():
        (row,) = (row for row in figures(fleet)["rules"] if row["tenant"] == "acme")
        return row.get("leased_per_s"), row.get("leased_since")

    fleet.absorb(beat(counters=counted(1, 0)))
    clock.turn(5.0)
    fleet.absorb(beat(counters=counted(2, 0)))
    assert seen() == (None, None)
    clock.turn(5.0)
    fleet.absorb(beat(counters=counted(3, 80)))
    began = clock.wall()
    rate, since = seen()
    assert (rate > 0, since) == (True, began)
    for n in range(4, 10):
        clock.turn(5.0)
        fleet.absorb(beat(counters=counted(n, 80)))
    # A moment without leased calls ends nothing: pods keep a lease for a minute.
    assert seen() == (0.0, began)
    for n in range(10, 24):
        clock.turn(5.0)
        fleet.absorb(beat(counters=counted(n, 80)))
    assert seen() == (None, None)


@pytest.mark.parametrize(("listed", "rate"), [(True, 20.0), (False, 0.0)])
def test_a_tenant_listed_for_the_first_time_counts_when_the_list_was_complete(fleet, clock, listed, rate):
    others = (TenantCounters(tenant="acme", allowed=100),)
    fleet.absorb(beat(counters=Counters(requests=100 if listed else 900, tenants=others)))
    clock.turn(5.0)
    tenants = (*others, TenantCounters(tenant="new", allowed=100))
    fleet.absorb(beat(counters=Counters(requests=1_000, tenants=tenants)))
    found = {row["tenant"]: row["requests_per_s"] for row in figures(fleet)["tenants"]}
    assert found.get("new", 0.0) == rate


def test_totals_are_empty_again_after_any_number_of_replacements():
    totals, held = Totals(), [NOTHING for _ in range(50)]
    for n in range(5_000):
        counts = {("requests", ""): n * 7919 % 997, ("reason", "quota"): n % 13 + 1}
        new = Contribution(counts, (n % 7, n % 3) if n % 2 else ())
        totals.replace(held[n % 50], new)
        held[n % 50] = new
    for old in held:
        totals.replace(old, NOTHING)
    assert totals.milli == {}
    assert set(totals.latency) == {0}


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0] * 12, 0.5, None),
        ([100] + [0] * 11, 0.5, 125),
        ([50, 50] + [0] * 10, 0.99, 495),
        ([0] * 11 + [10], 0.5, 500_000),
    ],
)
def test_percentiles_lie_within_their_bucket(counts, share, expected):
    assert percentile_us(counts, share) == expected


def test_figures_count_pods_that_are_in_no_rate_yet(fleet, clock):
    """As after a restart of the gateway, which knows its servers from Postgres."""
    fleet.absorb(beat(up_ms=60_000))
    fleet.absorb(beat("young", up_ms=100))
    assert figures_of(fleet)["uncounted"] == 1
    clock.turn(5.0)
    fleet.absorb(beat(up_ms=65_000))
    assert figures_of(fleet)["uncounted"] == 0
    assert add_figures([{"uncounted": 3}, {"uncounted": 4}, {}]).uncounted == 7


def test_figures_of_several_gateways_add_up(fleet, clock):
    fleet.absorb(beat(counters=counted(0)))
    clock.turn(5.0)
    fleet.absorb(beat(counters=counted(500, refused=50)))
    document = figures(fleet)
    both = add_figures([document, document])
    assert both.requests_per_s == 200.0
    assert both.refused_by_reason == {"quota": 20.0}
    assert both.gateways == 2
    assert add_figures([]).gateways == 0
