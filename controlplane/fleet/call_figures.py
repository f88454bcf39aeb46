"""Figures of the protection of calls over the fleet, by dependency."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from fuseboard.contract.words import CallTier

TIERS = tuple(tier.value for tier in CallTier)


@dataclass(frozen=True)
class SlotFigures:
    """One tier of the bulkheads of all pods together."""

    tier: str
    limit: int = 0
    active: int = 0
    queued: int = 0
    entered_per_s: float = 0.0
    #: Refused because slots and queue were full; and because the wait for a slot was too long.
    full_per_s: float = 0.0
    timed_out_per_s: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether no pod has calls of this tier, so that the others have its slots."""
        return not (self.limit or self.active or self.queued)

    @property
    def refused_per_s(self) -> float:
        return self.full_per_s + self.timed_out_per_s


@dataclass(frozen=True)
class CallFigures:
    """Rates over about 30 s, and how full the bulkheads are now."""

    #: Critical, standard, optional; empty without a bulkhead.
    tiers: tuple[SlotFigures, ...] = ()
    #: Pods that call it.
    callers: int = 0
    #: The mean over the pods of how long their calls take; ``None`` when that is unknown.
    mean_ms: float | None = None
    #: The mean over the pods of their p95: how long calls take, and how long they wait for a slot.
    p95_ms: float | None = None
    wait_p95_ms: float | None = None
    #: Places of all adaptive queues together, and the calls that Little's law predicts in them; ``None``
    #: when queues are not adaptive.
    queue_size: int | None = None
    queue_predicted: int | None = None
    #: Since these pods started: calls that were never reported and lost their slots; and calls that found no
    #: free slot while their own task had one.
    reclaimed: int = 0
    nested: int = 0
    first_calls_per_s: float = 0.0
    retries_per_s: float = 0.0
    #: Calls that a retry saved; and retries that the budget refused.
    helped_per_s: float = 0.0
    no_budget_per_s: float = 0.0
    #: Calls whose last allowed attempt failed.
    exhausted_per_s: float = 0.0
    fallbacks_per_s: float = 0.0
    fallback_failures_per_s: float = 0.0
    #: Calls that a part in observe mode would have refused.
    observed_per_s: float = 0.0

    @property
    def every_tier(self) -> tuple[SlotFigures, ...]:
        """Each tier of a bulkhead, also one that does not call: it has no slots then, and no figures."""
        known = {tier.tier: tier for tier in self.tiers}
        return tuple(known.get(tier, SlotFigures(tier)) for tier in TIERS) if known else ()

    @property
    def limit(self) -> int:
        return sum(tier.limit for tier in self.tiers)

    @property
    def active(self) -> int:
        return sum(tier.active for tier in self.tiers)

    @property
    def queued(self) -> int:
        return sum(tier.queued for tier in self.tiers)

    @property
    def refused_per_s(self) -> float:
        return sum(tier.refused_per_s for tier in self.tiers)


_RATES = tuple(one.name for one in fields(CallFigures) if one.name.endswith("_per_s"))
_SLOTS = tuple(one.name for one in fields(SlotFigures) if one.name != "tier")


def add_calls(documents: Sequence[dict[str, Any]]) -> dict[str, CallFigures]:
    """Sum the documents of several gateways. One of an older version has none."""
    found: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        for name, calls in document.get("protection", {}).items():
            found.setdefault(name, []).append(calls)
    return {name: _added(found[name]) for name in sorted(found)}


def _added(parts: list[dict[str, Any]]) -> CallFigures:
    by_tier = {
        tier: [slots for part in parts if (slots := part.get("tiers", {}).get(tier))] for tier in TIERS
    }
    tiers = tuple(
        SlotFigures(tier, **{name: _sum(slots, name) for name in _SLOTS})
        for tier, slots in by_tier.items()
        if slots
    )
    adaptive = _sum(parts, "queue_pods") > 0
    return CallFigures(
        tiers=tiers,
        callers=int(_sum(parts, "callers")),
        mean_ms=_mean(parts, "mean_ms", "mean_pods"),
        p95_ms=_mean(parts, "p95_ms", "p95_pods"),
        wait_p95_ms=_mean(parts, "wait_p95_ms", "wait_p95_pods"),
        queue_size=_sum(parts, "queue_size") if adaptive else None,
        queue_predicted=_sum(parts, "queue_predicted") if adaptive else None,
        reclaimed=_sum(parts, "reclaimed"),
        nested=_sum(parts, "nested"),
        **{name: _sum(parts, name) for name in _RATES},
    )


def _mean(parts: list[dict[str, Any]], name: str, pods: str) -> float | None:
    measured = _sum(parts, pods)
    return _sum(parts, name) / measured if measured else None


def _sum(parts: list[dict[str, Any]], name: str) -> Any:
    return sum(part.get(name, 0) for part in parts)
