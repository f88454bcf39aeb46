"""What gateways count per 10 s, in memory: exactly what pods counted, and never twice."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from controlplane.gateway.servers import series_spans
from controlplane.gateway.servers.series_counts import THE_FLEET, pod_of
from controlplane.gateway.servers.series_spans import (
    KEPT_SPANS,
    TOP_TENANTS,
    FleetSeries,
    values,
)
from controlplane.series.kinds import CALL_FIELDS, DEPENDENCY, FLEET, POD, RULE, TENANT
from controlplane.series.percentiles import percentile
from fuseboard.contract.load import PodLoad
from fuseboard.contract.sync import (
    CALL_EDGES_MS,
    Counters,
    DependencyCounters,
    RuleCounters,
    StoreCounters,
    SyncRequest,
    TenantCounters,
)
from fuseboard.contract.words import Mode, Reason

TO_WALL = 1_800_000_000.0
_pack = msgpack.Encoder().encode


def heartbeat(counters, sequence, *, pod="pod-1", boot="boot-0001", up_ms=3_600_000, **fields):
    return SyncRequest(
        environment="production",
        service="checkout",
        server=pod,
        boot=boot,
        sequence=sequence,
        agent_version="0.1.0",
        up_ms=up_ms,
        counters=counters,
        **fields,
    )


def hear(series, beat, now):
    series.record(beat, _pack(beat.counters), now)


def collect(series, now, *, known=1, present=None):
    names = (lambda: present) if present is not None else lambda: _Any()
    for _ in series.collect(now, now + TO_WALL, known=known, present=names):
        pass


class _Any:
    def __contains__(self, name):
        return True


def total(series, thing, field):
    place = thing[0].place(field)
    return sum(span.counted.get(thing, {}).get(place, 0) for span in series.spans.values())


def requests(series):
    place = FLEET.place("requests")
    return {
        span.at - int(TO_WALL): span.counted.get(THE_FLEET, {}).get(place, 0)
        for span in series.spans.values()
        if span.heard
    }


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pod-1", "pod-2", "pod-3"]),
            st.integers(0, 40_000),
            st.integers(0, 999),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_all_spans_together_contain_exactly_what_pods_counted(steps):
    """Whatever the pauses are, and however often the spans are collected: the sums are exact."""
    series, now = FleetSeries(), 1_000.0
    counted, base, sequence = Counter(), {}, Counter()
    for pod, pause_ms, more, collects in steps:
        now += pause_ms / 1000 / 20
        counted[pod] += more
        sequence[pod] += 1
        base.setdefault(pod, counted[pod])
        hear(series, heartbeat(Counters(requests=counted[pod]), sequence[pod], pod=pod), now)
        if collects:
            collect(series, now)
    collect(series, now)
    for pod, count in counted.items():
        assert total(series, pod_of(pod), "requests") == count - base[pod]
    assert total(series, THE_FLEET, "requests") == sum(counted.values()) - sum(base.values())


def test_a_difference_is_spread_over_the_time_between_two_heartbeats():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=100), 1), 1_005.0)
    collect(series, 1_005.0)
    hear(series, heartbeat(Counters(requests=125), 2), 1_030.0)
    collect(series, 1_030.0)
    assert requests(series) == {1_000: 5, 1_010: 10, 1_020: 10}


def test_a_silence_is_filled_for_five_minutes_and_nothing_is_lost():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=0), 1), 1_000.0)
    hear(series, heartbeat(Counters(requests=9_001), 2), 2_000.0)
    collect(series, 2_000.0)
    assert len(requests(series)) == KEPT_SPANS
    assert sum(requests(series).values()) == 9_001


def test_two_gateways_never_count_the_same_call():
    """A pod whose heartbeats go to two gateways in turn: each leaves out what the other may have counted."""
    one, other = FleetSeries(), FleetSeries()
    calls, counted = 0, 0
    for sequence, gateway in enumerate([one, one, other, one, one, other, other, one], start=1):
        calls += 10
        one.looked_at = other.looked_at = 1_001.0 + 5 * sequence
        hear(gateway, heartbeat(Counters(requests=calls), sequence), 1_000.0 + 5 * sequence)
        collect(gateway, 1_000.0 + 5 * sequence)
    counted = total(one, THE_FLEET, "requests") + total(other, THE_FLEET, "requests")
    assert counted == 30  # from 1 to 2, from 4 to 5, and from 6 to 7
    assert (one.left_out, other.left_out) == (2, 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),  # the gateway that hears the pod
            st.integers(0, 50),
            st.booleans(),  # whether the answer of the gateway is lost: the pod sends the next heartbeat
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_whatever_path_heartbeats_take_each_call_is_counted_at_most_once(steps):
    gateways = [FleetSeries() for _ in range(3)]
    now, counted, exactly, last = 1_000.0, 0, 0, None
    for sequence, (which, more, lost, looks) in enumerate(steps, start=1):
        now += 3
        counted += more
        if lost:
            continue
        hear(gateways[which], heartbeat(Counters(requests=counted), sequence, up_ms=60_000), now)
        if last is not None and last[:2] == (which, sequence - 1):
            exactly += counted - last[2]
        last = (which, sequence, counted)
        if looks:
            for gateway in gateways:
                gateway.looked_at = now
                collect(gateway, now)
    for gateway in gateways:
        gateway.looked_at = now + 1
        collect(gateway, now + 1)
    assert sum(total(gateway, THE_FLEET, "requests") for gateway in gateways) == exactly


def test_a_gateway_that_is_alone_counts_over_a_lost_heartbeat():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=10), 1), 1_000.0)
    hear(series, heartbeat(Counters(requests=40), 4), 1_010.0)
    collect(series, 1_010.0)
    # Whether it is alone is not known yet.
    assert total(series, THE_FLEET, "requests") == 0
    series.alone, series.looked_at = True, 1_011.0
    collect(series, 1_012.0)
    assert total(series, THE_FLEET, "requests") == 30


def test_a_young_pod_counts_from_its_start_and_an_old_one_from_its_first_heartbeat():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=8), 1, up_ms=4_000), 1_000.0)
    hear(series, heartbeat(Counters(requests=8), 1, pod="pod-2"), 1_000.0)
    series.looked_at = 1_001.0
    # Its second heartbeat: the first one may be in the series of another gateway.
    hear(series, heartbeat(Counters(requests=8), 2, pod="pod-3", up_ms=9_000), 1_000.0)
    collect(series, 1_000.0)
    assert total(series, THE_FLEET, "requests") == 8
    assert max(span.heard for span in series.spans.values()) == 1


def test_a_restarted_pod_loses_nothing_of_its_last_heartbeat():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=1), 1), 1_000.0)
    collect(series, 1_000.0)
    hear(series, heartbeat(Counters(requests=7), 2), 1_003.0)
    hear(series, heartbeat(Counters(requests=2), 1, boot="boot-0002", up_ms=500), 1_003.5)
    collect(series, 1_004.0)
    assert total(series, pod_of("pod-1"), "requests") == 6 + 2


def test_a_pod_that_is_handed_over_is_counted_here_only_until_then():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=1), 1), 1_000.0)
    hear(series, heartbeat(Counters(requests=5), 2), 1_005.0)
    collect(series, 1_005.0, present=set())
    assert total(series, THE_FLEET, "requests") == 4
    hear(series, heartbeat(Counters(requests=50), 3), 1_010.0)
    collect(series, 1_010.0)
    assert total(series, THE_FLEET, "requests") == 4


def test_all_kinds_of_things_are_counted():
    refused = {Reason.BREAKER_OPEN: 3, Reason.VENDOR_LIMIT: 2, Reason.SHED: 1}
    now = Counters(
        requests=10,
        refused={Reason.QUOTA: 4},
        unknown_tenants=1,
        decided_locally=2,
        store=StoreCounters(asked=9, timeouts=1, errors=2, latency=(5, 3)),
        dependencies=(
            DependencyCounters(dependency="llm", ok=6, failure=2, slow=1, neutral=1, refused=refused),
        ),
        tenants=(
            TenantCounters(
                tenant="acme", allowed=6, refused=4, rules=(RuleCounters(rule="rps", refused=4, shadow=1),)
            ),
        ),
        rules=(RuleCounters(rule="rps", asked=10, refused=4),),
    )
    series = FleetSeries()
    load = PodLoad(pressure=700, cpu=300, in_flight=4)
    beat = heartbeat(now, 1, up_ms=5_000, mode=Mode.LOCAL, load=load)
    hear(series, beat, 1_005.0)
    collect(series, 1_005.0)
    (span,) = series.spans.values()
    found = {
        thing: dict(zip([field.name for field in thing[0].fields], v, strict=True))
        for thing, v in values(span).items()
    }
    assert found.keys() == {
        THE_FLEET,
        (DEPENDENCY, "llm", ""),
        (POD, "pod-1", ""),
        (TENANT, "acme", ""),
        (RULE, "acme", "rps"),
        (RULE, "", "rps"),
    }
    fleet = {name: value for name, value in found[THE_FLEET].items() if value}
    assert fleet == {
        "requests": 10,
        "refused": 4,
        "unknown_tenants": 1,
        "decided_locally": 2,
        "calls": 10,
        "failures": 2,
        "blocked": 3,
        "redis_asked": 9,
        "redis_timeouts": 1,
        "redis_errors": 2,
        "redis_to_250_us": 5,
        "redis_to_500_us": 3,
        "pods_local": 1,
    }
    assert list(found[DEPENDENCY, "llm", ""].values()) == [
        *(6, 2, 1, 1, 3, 2, 1),
        *[0] * (DEPENDENCY.width - 7),
    ]
    assert list(found[POD, "pod-1", ""].values()) == [10, 4, 10, 2, 2, 9, 3, 700, 300, 4]
    assert list(found[TENANT, "acme", ""].values()) == [10, 4]
    assert list(found[RULE, "acme", "rps"].values()) == [10, 4, 1]


def test_what_a_pod_does_not_measure_is_unknown():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=1), 1, up_ms=5_000), 1_005.0)
    collect(series, 1_005.0)
    (span,) = series.spans.values()
    assert values(span)[pod_of("pod-1")][-3:] == [None, None, None]


def test_only_the_busiest_tenants_are_kept_and_the_floor_says_so():
    def counters(pod, times):
        names = [(f"t-{number:03}", number + 1) for number in range(pod * 100, pod * 100 + 100)]
        rows = tuple(TenantCounters(tenant=name, allowed=count * times) for name, count in names)
        return Counters(requests=sum(row.allowed for row in rows), tenants=rows)

    series = FleetSeries()
    for pod in range(3):
        hear(series, heartbeat(counters(pod, 0), 1, pod=f"pod-{pod}"), 1_000.0)
        hear(series, heartbeat(counters(pod, 1), 2, pod=f"pod-{pod}"), 1_009.0)
    collect(series, 1_009.0)
    (span,) = series.spans.values()
    assert span.floor == 0
    collect(series, 1_030.0)
    span = series.spans[int(TO_WALL) + 1_000]
    kept = sorted(thing[1] for thing in span.counted if thing[0] is TENANT)
    assert (len(kept), kept[0], span.floor) == (TOP_TENANTS, "t-100", 100)


def test_a_span_is_dirty_until_it_is_written_and_again_when_it_grows():
    series = FleetSeries()
    hear(series, heartbeat(Counters(requests=0), 1), 1_000.0)
    hear(series, heartbeat(Counters(requests=10), 2), 1_010.0)
    collect(series, 1_010.0)
    (span,) = series.dirty(before=1_010 + TO_WALL)
    span.dirty = False
    collect(series, 1_011.0)
    assert series.dirty(before=1_010 + TO_WALL) == []
    hear(series, heartbeat(Counters(requests=20), 3), 1_020.0)
    collect(series, 1_020.0)
    assert [one.at - TO_WALL for one in series.dirty(before=1_020 + TO_WALL)] == [1_010]


def dependency_counters(**counts):
    return Counters(dependencies=(DependencyCounters(dependency="llm", **counts),))


def test_how_long_calls_took_is_stored_and_gaps_of_it_count_nothing():
    """A heartbeat that was too long had left it out: then the next one is no burst of slow calls."""
    series, llm = FleetSeries(), (DEPENDENCY, "llm", "")
    heard = [
        dependency_counters(ok=10, latency=(4, 6)),
        dependency_counters(ok=13, latency=(5, 7, 1)),
        dependency_counters(ok=15),
        dependency_counters(ok=20, latency=(6, 7, 7)),
        dependency_counters(ok=21, latency=(6, 7, 8)),
    ]
    for sequence, counters in enumerate(heard, start=1):
        hear(series, heartbeat(counters, sequence), 1_000.0 + sequence)
        collect(series, 1_000.0 + sequence)
    took = [total(series, llm, field) for field in CALL_FIELDS[:4]]
    assert took == [1, 1, 2, 0]
    assert total(series, llm, "ok") == 11


def test_a_percentile_of_the_times_of_calls_ends_at_the_last_edge():
    counts: dict[str, int | None] = dict.fromkeys(CALL_FIELDS)
    assert percentile([*counts.values()], CALL_EDGES_MS, 50) is None
    counts |= {"took_to_10_ms": 50, "took_to_20_ms": 45, "took_longer": 5}
    found = [percentile([*counts.values()], CALL_EDGES_MS, percent) for percent in (50, 95, 99)]
    assert found == [10.0, 20.0, 60_000]


def test_pods_are_counted_once_per_span_also_without_their_names():
    """Their names were kept for 5 minutes: 50,000 pods needed 100 MB."""
    series = FleetSeries()
    for sequence in range(1, 14):
        hear(series, heartbeat(Counters(requests=sequence), sequence), 1_000.0 + 7 * sequence)
        if sequence not in (9, 10, 11):
            collect(series, 1_000.0 + 7 * sequence)
    # A silence is filled later, in spans without names.
    hear(series, heartbeat(Counters(requests=20), 14), 1_190.0)
    collect(series, 1_190.0)
    inner = [span for span in series.spans.values() if 1_010 <= span.at - TO_WALL <= 1_180]
    assert {span.heard for span in inner} == {1}
    assert all(not span.heard_names for span in inner if span.chosen)


def test_a_span_keeps_a_bounded_number_of_pods_and_dependencies(monkeypatch):
    monkeypatch.setattr(series_spans, "MAX_PODS", 5)
    monkeypatch.setattr(series_spans, "TOP_DEPENDENCIES", 7)
    series = FleetSeries()
    for n in range(20):
        calls = (DependencyCounters(dependency=f"llm-{n:02}", ok=n + 1),)
        counters = Counters(requests=1, dependencies=calls)
        hear(series, heartbeat(counters, 1, pod=f"pod-{n}", up_ms=5_000), 1_000.0)
    collect(series, 1_000.0)
    collect(series, 1_060.0)
    [span] = [span for span in series.spans.values() if span.heard]
    assert span.heard == 20
    assert sum(thing[0] is POD for thing in span.counted) == 5
    dependencies = {thing[1] for thing in span.counted if thing[0] is DEPENDENCY}
    assert dependencies == {f"llm-{n}" for n in range(13, 20)}
    assert total(series, THE_FLEET, "requests") == 20
