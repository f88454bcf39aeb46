"""Differences of counters: whichever heartbeats are compared, the sum is what a pod counted."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.servers.counter_delta import difference
from controlplane.gateway.servers.rates import NOTHING, Contribution, Totals
from fuseboard.contract.sync import (
    Counters,
    DependencyCounters,
    RuleCounters,
    StoreCounters,
    TenantCounters,
)
from fuseboard.contract.words import Reason

NAMES = ("a", "b", "c")
REASONS = (Reason.QUOTA, Reason.BREAKER_OPEN)
PLACES = (
    *("requests", "unknown_tenants", "decided_locally", "asked", "timeouts", "errors"),
    *(("answers", bucket) for bucket in range(4)),
    *(("reason", reason) for reason in REASONS),
    *((field, name) for field in ("ok", "failure", "slow", "neutral") for name in NAMES),
    *(("took", name, bucket) for name in NAMES for bucket in range(3)),
    *((field, name) for field in ("allowed", "refused") for name in NAMES),
    *((field, name) for field in ("rule_asked", "rule_refused", "shadow", "leased") for name in NAMES),
)

counted = st.dictionaries(st.sampled_from(PLACES), st.integers(1, 1_000), max_size=20)


def counters_of(total):
    """Cumulative counters as a pod reports them, with complete lists."""
    return Counters(
        requests=total["requests"] + sum(total["allowed", n] + total["refused", n] for n in NAMES),
        refused={reason: total["reason", reason] for reason in REASONS},
        unknown_tenants=total["unknown_tenants"],
        decided_locally=total["decided_locally"],
        store=StoreCounters(
            asked=total["asked"],
            timeouts=total["timeouts"],
            errors=total["errors"],
            latency=tuple(total["answers", bucket] for bucket in range(4)),
        ),
        dependencies=tuple(
            DependencyCounters(
                dependency=name,
                ok=total["ok", name],
                failure=total["failure", name],
                slow=total["slow", name],
                neutral=total["neutral", name],
                latency=tuple(total["took", name, bucket] for bucket in range(3)),
            )
            for name in NAMES
        ),
        tenants=tuple(
            TenantCounters(tenant=name, allowed=total["allowed", name], refused=total["refused", name])
            for name in NAMES
        ),
        rules=tuple(
            RuleCounters(
                rule=name,
                asked=total["rule_asked", name],
                refused=total["rule_refused", name],
                shadow=total["shadow", name],
                leased=total["leased", name],
            )
            for name in NAMES
        ),
    )


def total_of(counters):
    """The reverse of ``counters_of``, also for a difference."""
    found = Counter(
        {
            "unknown_tenants": counters.unknown_tenants,
            "decided_locally": counters.decided_locally,
            "asked": counters.store.asked,
            "timeouts": counters.store.timeouts,
            "errors": counters.store.errors,
            "requests": counters.requests - sum(one.allowed + one.refused for one in counters.tenants),
        }
    )
    found.update({("answers", place): count for place, count in enumerate(counters.store.latency)})
    found.update({("reason", reason): count for reason, count in counters.refused.items()})
    for one in counters.dependencies:
        for field in ("ok", "failure", "slow", "neutral"):
            found[field, one.dependency] = getattr(one, field)
        found.update({("took", one.dependency, place): count for place, count in enumerate(one.latency)})
    for tenant in counters.tenants:
        found["allowed", tenant.tenant] = tenant.allowed
        found["refused", tenant.tenant] = tenant.refused
    for rule in counters.rules:
        for place, count in (
            ("rule_asked", rule.asked),
            ("rule_refused", rule.refused),
            ("shadow", rule.shadow),
            ("leased", rule.leased),
        ):
            found[place, rule.rule] = count
    return +found


@given(st.lists(counted, min_size=1, max_size=5))
def test_the_differences_of_any_heartbeats_add_up_to_what_was_counted(steps):
    """A pod that sends a heartbeat after each step is compared with each one, or only with the first."""
    total, apart = Counter(), Counter()
    heartbeats = [counters_of(total)]
    for step in steps:
        total.update(step)
        heartbeats.append(counters_of(total))
        apart += total_of(difference(heartbeats[-2], heartbeats[-1], cut=False))
    assert apart == total
    assert total_of(difference(heartbeats[0], heartbeats[-1], cut=True)) == total


@given(counted, counted)
def test_counters_that_fall_count_nothing_below_zero(before, after):
    found = total_of(difference(counters_of(Counter(before)), counters_of(Counter(after)), cut=False))
    assert all(count >= 0 for key, count in found.items() if key != "requests")


rates = st.builds(
    Contribution,
    st.dictionaries(st.sampled_from([("calls", name) for name in NAMES]), st.integers(0, 1_000)),
    st.one_of(st.just(()), st.tuples(st.integers(0, 9), st.integers(0, 9))),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), rates), max_size=30))
def test_the_totals_after_any_changes_are_the_sum_over_all_pods(changes):
    totals, pods = Totals(), dict.fromkeys(NAMES, NOTHING)
    for pod, new in changes:
        alone = totals.replace(pods[pod], new)
        pods[pod] = new
        assert alone == sum(totals.milli.get(key) == count for key, count in new.counts.items())
    expected = Counter()
    for one in pods.values():
        expected.update(one.counts)
    assert totals.milli == +expected
    for bucket in range(2):
        assert totals.latency[bucket] == sum(one.latency[bucket] for one in pods.values() if one.latency)
