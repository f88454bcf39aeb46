"""The document of ``fleet.Figures``: rates per second over every server this gateway hears."""

from collections import defaultdict
from heapq import nsmallest
from typing import Any

from controlplane.fleet.live import TOP_TENANTS
from controlplane.gateway.servers.call_figures import call_figures
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.leased_keys import LeasedKeys
from controlplane.gateway.servers.rates import Key, pair, percentile_us

#: Tenants whose demand is kept, see ``controlplane.usage``: as many as a server lists.
USAGE_TENANTS = 100
#: Pairs of a rule and a tenant, or all tenants, whose demand is kept.
USAGE_RULES = 150

#: Kind of total -> field of a dependency.
_DEPENDENCY_FIELDS = {
    "calls": "calls_per_s",
    "failures": "failures_per_s",
    "slow": "slow_per_s",
    "refused": "refused_per_s",
}


def figures_of(fleet: Fleet) -> dict[str, Any]:
    """The fields of ``fleet.live.FleetFigures``, but for the number of gateways."""
    milli = fleet.sums.totals.milli
    reasons = {name: value / 1000 for (kind, name), value in milli.items() if kind == "reason"}
    latency = fleet.sums.totals.latency
    busiest = _tenants(milli, most=USAGE_TENANTS)
    return {
        "requests_per_s": _plain(milli, "requests"),
        "refused_per_s": round(sum(reasons.values()), 3),
        "refused_by_reason": reasons,
        "tenants": busiest[:TOP_TENANTS],
        "usage": busiest,
        "rules": _rules(milli, fleet.leased),
        "dependencies": _dependencies(milli),
        "protection": call_figures(milli, fleet.protection.protected),
        "store": {
            "p50_us": percentile_us(latency, 0.50),
            "p99_us": percentile_us(latency, 0.99),
            "asked_per_s": _plain(milli, "asked"),
            "timeouts_per_s": _plain(milli, "timeouts"),
            "errors_per_s": _plain(milli, "errors"),
            "primaries": fleet.primaries,
            "primaries_down": fleet.primaries_down,
        },
        "decided_locally_per_s": _plain(milli, "decided_locally"),
        "unknown_tenants_per_s": _plain(milli, "unknown_tenants"),
        "live_servers": fleet.size.live_servers,
        "frozen": fleet.preservation.frozen,
        "frozen_silent": fleet.preservation.silent,
        "frozen_expected": fleet.preservation.expected,
        "frozen_until": fleet.frozen_until(),
        "uncounted": fleet.uncounted(),
        "new_pods_refused": fleet.new_pods_refused(),
        "unhanded": fleet.unhanded,
    }


def _plain(milli: dict[Key, int], kind: str) -> float:
    return milli.get((kind, ""), 0) / 1000


def _tenants(milli: dict[Key, int], *, most: int) -> list[dict[str, Any]]:
    """Tenants that are refused most, then tenants that ask most."""
    # One by one: there can be a hundred thousand, and a list of them takes megabytes.
    every = (
        (-milli.get(("tenant_refused", name), 0), -asked, name)
        for (kind, name), asked in milli.items()
        if kind == "tenant_requests"
    )
    return [
        {"tenant": name, "requests_per_s": -asked / 1000, "refused_per_s": -refused / 1000}
        for refused, asked, name in nsmallest(most, every)
    ]


def _rules(milli: dict[Key, int], leased: LeasedKeys) -> list[dict[str, Any]]:
    """Demand that rules bound: all tenants together, then the busiest."""
    every = (
        (tenant != "", -asked, rule, tenant)
        for (kind, name), asked in milli.items()
        if kind == "rule_asked"
        for rule, _, tenant in (name.partition("\x1f"),)
    )
    rows = [
        {
            "tenant": tenant,
            "rule": rule,
            "asked_per_s": -asked / 1000,
            "refused_per_s": milli.get(("rule_refused", pair(tenant, rule)), 0) / 1000,
            "shadow_per_s": milli.get(("rule_shadow", pair(tenant, rule)), 0) / 1000,
        }
        for _, asked, rule, tenant in nsmallest(USAGE_RULES, every)
    ]
    rates = {key: milli.get(("rule_leased", pair(*key)), 0) / 1000 for key in map(_key, rows)}
    leased.note(key for key, rate in rates.items() if rate)
    # Few keys are leased: the others have no fields for it.
    for row in rows:
        if since := leased.since(_key(row)):
            row |= {"leased_per_s": rates[_key(row)], "leased_since": since}
    return rows


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["tenant"], row["rule"]


def _dependencies(milli: dict[Key, int]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_DEPENDENCY_FIELDS.values(), 0.0))
    for (kind, name), value in milli.items():
        if kind in _DEPENDENCY_FIELDS:
            found[name][_DEPENDENCY_FIELDS[kind]] = value / 1000
    return dict(sorted(found.items()))
