"""Limits: who is limited, by what, and what limits refuse now and without Redis."""

from controlplane.alerts.rules.thresholds import REFUSED_SHARE, REFUSED_SHARE_CRITICAL
from controlplane.checklist.lines import Answer, Item, Verdict, each, listed, ok_if
from controlplane.checklist.read_state import LATELY, State
from controlplane.phrases import percent
from controlplane.policies.models import Kind
from fuseboard.contract.words import FailurePolicy

_NO_REQUEST = (Verdict.UNCHECKED, f"No request of the last {LATELY.days} days is in the history.")


def _enforced(state: State) -> set[str]:
    """The tiers with a quota that refuses."""
    return {name for name, row in state.tier_quotas if not row.shadow}


def _tiers(state: State) -> Answer:
    tiers, enforced = [tier.name for tier in state.tiers], _enforced(state)
    bad = [name for name in tiers if name not in enforced]
    return each(bad, tiers, "have no quota that refuses", "All tiers have a quota", none="There is no tier.")


def _unregistered(state: State) -> Answer:
    default = state.environment.default_tier.name
    found = f"The default tier is {default}."
    return ok_if(
        default in _enforced(state), found, f"{found} No quota of it refuses.", worst=Verdict.MISSING
    )


def _shadows(state: State) -> Answer:
    counts = {
        "of tiers": sum(row.shadow for _, row in state.tier_quotas),
        "of tenants": state.tenant_shadows,
        "of vendors": sum(row.shadow for _, row in state.vendor_limits),
        "of callers": sum(row.shadow for row in state.subject_limits),
    }
    found = ", ".join(f"{number:,} {of}" for of, number in counts.items() if number)
    return ok_if(not found, "No shadow", f"Shadows: {found}")


def _vendors(state: State) -> Answer:
    outside = [one.name for one in state.dependencies if one.row.kind in (Kind.LLM, Kind.EXTERNAL)]
    limited = {name for name, _ in state.vendor_limits}
    bad = [name for name in outside if name not in limited]
    return each(
        bad, outside, "have no vendor limit", "All have a vendor limit", none="No dependency is external."
    )


def _stated(state: State) -> Answer:
    limits = {(name, row.name): row.limit for name, row in state.vendor_limits}
    heard = {key: state.stated[key] for key in sorted(limits) if key in state.stated}
    # One pod alone, or few answers, are no evidence, as for a suggestion.
    stated = {key: one.number for key, one in heard.items() if one.is_proven}
    return each(
        [
            f"{'/'.join(key)} is {limits[key]:,}, the vendor states {number:,}"
            for key, number in stated.items()
            if number < limits[key]
        ],
        stated,
        "are higher than the vendor allows",
        "None is higher",
        none="No vendor has stated a limit in 20 answers to two running pods.",
    )


def _followed(state: State) -> Answer:
    floor = state.environment.tuning.get("vendor_floor_percent", 0)
    limits = {(name, row.name): row.limit for name, row in state.vendor_limits}
    followed = {key: state.followed[key] for key in sorted(limits) if key in state.followed}
    low = [
        f"{'/'.join(key)} is {number:,} of {limits[key]:,}"
        for key, number in followed.items()
        if 2 * number < limits[key]
    ]
    if low:
        return Verdict.ATTENTION, f"below half of what is configured: {listed(low)}"
    if not floor:
        return Verdict.OK, "No limit follows its vendor."
    return Verdict.OK, f"Down to {floor} % is allowed; {len(followed)} lowered now."


def _callers(state: State) -> Answer:
    number = sum(not row.shadow and not row.service for row in state.subject_limits)
    return ok_if(number, f"{number} limits", "No subject limit refuses.", worst=Verdict.MISSING)


def _without_redis(state: State) -> Answer:
    named = [(f"{name}/{row.name}", row) for name, row in state.vendor_limits]
    named += [(row.name, row) for row in state.subject_limits]
    return each(
        [name for name, row in named if row.failure_policy == FailurePolicy.FAIL_OPEN],
        named,
        "allow every call without Redis",
        "All hold",
        none="There is neither a vendor limit nor a subject limit.",
    )


def _refused(state: State) -> Answer:
    if state.fleet is None or not state.fleet.values[0]:
        return _NO_REQUEST
    requests, refused, _ = (value or 0 for value in state.fleet.values)
    share = refused / requests
    found = f"{percent(share)} of {requests:,} requests"
    if share > REFUSED_SHARE_CRITICAL:
        return Verdict.MISSING, found
    return ok_if(share <= REFUSED_SHARE, found)


def _unknown_tenants(state: State) -> Answer:
    if state.fleet is None or not state.fleet.values[0]:
        return _NO_REQUEST
    requests, _, unknown = (value or 0 for value in state.fleet.values)
    found = f"{percent(unknown / requests)} of {requests:,} requests named an unknown tenant"
    return ok_if(unknown * 100 <= requests, found)


GROUPS = {
    "Limits": (
        Item(
            "limit-tiers",
            "Each tier has a quota that refuses",
            "Add a quota to the tier, or switch off shadow.",
            "limits.md#limits",
            _tiers,
        ),
        Item(
            "limit-unregistered",
            "Unregistered tenants are limited",
            "Add a quota that refuses to the default tier.",
            "limits.md#who-shares-a-limit",
            _unregistered,
        ),
        Item(
            "limit-shadows",
            "No limit is left as a shadow",
            "Read what the shadow would have refused, then enforce or remove it.",
            "limits.md#shadow",
            _shadows,
        ),
        Item(
            "limit-vendors",
            "Each external dependency has its vendor's limit",
            "Add the limits of your contract as vendor limits.",
            "limits.md#limits",
            _vendors,
        ),
        Item(
            "limit-stated",
            "Vendor limits are not higher than what the vendors' answers state",
            "Lower the limit to the stated number, or ask the vendor for more.",
            "learned-limits.md#suggestions",
            _stated,
        ),
        Item(
            "limit-followed",
            "Limits that follow their vendor are near the configured number",
            "Find out who else uses the key, ask the vendor for more, or lower the limit.",
            "learned-limits.md#follow-the-vendor",
            _followed,
        ),
        Item(
            "limit-callers",
            "Callers without a tenant are limited",
            "Add a subject limit by IP address for logins and public routes.",
            "integration.md#5-callers-without-a-tenant",
            _callers,
        ),
        Item(
            "limit-without-redis",
            "Limits of vendors and of callers hold without Redis",
            "Use reserved for vendors, and local_share for callers without a tenant.",
            "limits.md#without-redis",
            _without_redis,
        ),
        Item(
            "limit-refused",
            f"Few requests were refused in {LATELY.days} days",
            "Find the tenants and quotas on the page Refusals before more traffic comes.",
            "refusals.md",
            _refused,
        ),
        Item(
            "limit-unknown-tenants",
            "Services send tenants that are registered",
            "Register the tenants, or correct the header that services read the tenant from.",
            "integration.md#2-limit-requests-guard-calls",
            _unknown_tenants,
        ),
    ),
}
