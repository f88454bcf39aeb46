"""Limits: who is limited, by what, and what limits refuse now and without Redis."""

from collections.abc import Iterator

from controlplane.alerts.rules.thresholds import REFUSED_SHARE, REFUSED_SHARE_CRITICAL
from controlplane.checklist.lines import Item, Line
from controlplane.checklist.read_state import LATELY, State
from controlplane.phrases import percent
from controlplane.policies.models import Kind
from fuseboard.contract.words import FailurePolicy

_LIMITS = "Limits"


def lines(state: State) -> Iterator[Line]:
    enforced = {name for name, row in state.tier_quotas if not row.shadow}
    tiers = [tier.name for tier in state.tiers]
    yield Item(
        key="limit-tiers",
        group=_LIMITS,
        check="Each tier has a quota that refuses",
        do="Add a quota to the tier, or switch off shadow.",
        doc="limits.md#limits",
    ).each(
        [name for name in tiers if name not in enforced],
        tiers,
        wrong="have no quota that refuses",
        right="All tiers have a quota",
        none="There is no tier.",
    )
    default = state.environment.default_tier.name
    item = Item(
        key="limit-unregistered",
        group=_LIMITS,
        check="Unregistered tenants are limited",
        do="Add a quota that refuses to the default tier.",
        doc="limits.md#who-shares-a-limit",
    )
    found = f"The default tier is {default}."
    yield item.ok(found) if default in enforced else item.missing(f"{found} No quota of it refuses.")
    yield _shadows(state)
    outside = [one for one in state.dependencies if one.row.kind in (Kind.LLM, Kind.EXTERNAL)]
    limited = {name for name, _ in state.vendor_limits}
    yield Item(
        key="limit-vendors",
        group=_LIMITS,
        check="Each external dependency has its vendor's limit",
        do="Add the limits of your contract as vendor limits.",
        doc="limits.md#limits",
    ).each(
        [one.name for one in outside if one.name not in limited],
        outside,
        wrong="have no vendor limit",
        right="All have a vendor limit",
        none="No dependency is external.",
    )
    item = Item(
        key="limit-callers",
        group=_LIMITS,
        check="Callers without a tenant are limited",
        do="Add a subject limit by IP address for logins and public routes.",
        doc="integration.md#5-callers-without-a-tenant",
    )
    number = sum(not row.shadow and not row.service for row in state.subject_limits)
    yield item.ok(f"{number} limits") if number else item.missing("No subject limit refuses.")
    yield _without_redis(state)
    yield _refused(state)
    yield _unknown_tenants(state)


def _shadows(state: State) -> Line:
    item = Item(
        key="limit-shadows",
        group=_LIMITS,
        check="No limit is left as a shadow",
        do="Read what the shadow would have refused, then enforce or remove it.",
        doc="limits.md#shadow",
    )
    counts = {
        "of tiers": sum(row.shadow for _, row in state.tier_quotas),
        "of tenants": state.tenant_shadows,
        "of vendors": sum(row.shadow for _, row in state.vendor_limits),
        "of callers": sum(row.shadow for row in state.subject_limits),
    }
    found = ", ".join(f"{number:,} {of}" for of, number in counts.items() if number)
    return item.attention(f"Shadows: {found}") if found else item.ok("No shadow")


def _without_redis(state: State) -> Line:
    item = Item(
        key="limit-without-redis",
        group=_LIMITS,
        check="Limits of vendors and of callers hold without Redis",
        do="Use reserved for vendors, and local_share for callers without a tenant.",
        doc="limits.md#without-redis",
    )
    named = [(f"{name}/{row.name}", row) for name, row in state.vendor_limits]
    named += [(row.name, row) for row in state.subject_limits]
    return item.each(
        [name for name, row in named if row.failure_policy == FailurePolicy.FAIL_OPEN],
        named,
        wrong="allow every call without Redis",
        right="All hold",
        none="There is neither a vendor limit nor a subject limit.",
    )


def _refused(state: State) -> Line:
    item = Item(
        key="limit-refused",
        group=_LIMITS,
        check=f"Few requests were refused in {LATELY.days} days",
        do="Find the tenants and quotas on the page Refusals before more traffic comes.",
        doc="refusals.md",
    )
    if state.fleet is None or not state.fleet.values[0]:
        return item.unchecked(f"No request of the last {LATELY.days} days is in the history.")
    requests, refused, _ = (value or 0 for value in state.fleet.values)
    share = refused / requests
    found = f"{percent(share)} of {requests:,} requests"
    if share > REFUSED_SHARE_CRITICAL:
        return item.missing(found)
    return item.attention(found) if share > REFUSED_SHARE else item.ok(found)


def _unknown_tenants(state: State) -> Line:
    item = Item(
        key="limit-unknown-tenants",
        group=_LIMITS,
        check="Services send tenants that are registered",
        do="Register the tenants, or correct the header that services read the tenant from.",
        doc="integration.md#2-limit-requests-guard-calls",
    )
    if state.fleet is None or not state.fleet.values[0]:
        return item.unchecked(f"No request of the last {LATELY.days} days is in the history.")
    requests, _, unknown = (value or 0 for value in state.fleet.values)
    found = f"{percent(unknown / requests)} of {requests:,} requests named an unknown tenant"
    return item.attention(found) if unknown * 100 > requests else item.ok(found)
