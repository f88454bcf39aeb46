"""The part of ``fleet.Figures`` about what protects calls."""

from heapq import nlargest
from typing import Any

from controlplane.gateway.servers.rates import Key
from fuseboard.contract.words import CallTier

#: Dependencies with a part of the protection that one document contains, those with most pods first.
MAX_DEPENDENCIES = 500

_TIERS = tuple(tier.value for tier in CallTier)
#: Kind of total -> field of ``CallFigures``.
_RATES = {
    "first_calls": "first_calls_per_s",
    "retries": "retries_per_s",
    "retries_helped": "helped_per_s",
    "retries_no_budget": "no_budget_per_s",
    "retries_exhausted": "exhausted_per_s",
    "fallbacks": "fallbacks_per_s",
    "fallback_failures": "fallback_failures_per_s",
    "observed": "observed_per_s",
}
#: Kinds that stay as they are: sums over pods, and of how many pods.
_SUMS = (
    *("mean_ms", "mean_pods", "p95_ms", "p95_pods", "wait_p95_ms", "wait_p95_pods"),
    *("queue_size", "queue_pods", "queue_predicted", "reclaimed", "nested"),
)
_NUMBERS = {"slots_limit": "limit", "slots_active": "active", "slots_queued": "queued"}
_SLOT_RATES = {
    "slots_entered": "entered_per_s",
    "slots_full": "full_per_s",
    "slots_timed_out": "timed_out_per_s",
}


def call_figures(milli: dict[Key, int], protected: frozenset[str] | None = None) -> dict[str, dict[str, Any]]:
    """Dependency -> the fields of ``controlplane.fleet.call_figures.CallFigures``; 0 is left out.

    Only those in ``protected``, if that is known: pods can report any names.
    """
    callers = {
        name: value
        for (kind, name), value in milli.items()
        if kind == "callers" and (protected is None or name in protected)
    }
    shown = nlargest(MAX_DEPENDENCIES, callers, key=lambda name: (callers[name], name))
    found: dict[str, dict[str, Any]] = {name: {"callers": callers[name], "tiers": {}} for name in shown}
    for (kind, name), value in milli.items():
        if kind in _SUMS and name in found:
            found[name][kind] = value
        elif kind in _RATES and name in found:
            found[name][_RATES[kind]] = value / 1000
        elif kind in _NUMBERS or kind in _SLOT_RATES:
            dependency, _, tier = name.partition("\x1f")
            if dependency in found and tier in _TIERS:
                slots = found[dependency]["tiers"].setdefault(tier, {})
                if kind in _NUMBERS:
                    slots[_NUMBERS[kind]] = value
                else:
                    slots[_SLOT_RATES[kind]] = value / 1000
    return found
