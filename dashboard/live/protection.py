"""The protection of pods from one dependency, as its page displays it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from controlplane.fleet.call_figures import CallFigures, SlotFigures
from controlplane.phrases import number, rounded
from controlplane.policies.sizing import (
    MARGIN_PERCENT,
    bulkhead_words,
    slots_needed,
    slots_of_tier,
    suggested_rate,
)
from controlplane.status.facts import Facts
from dashboard.live.breakers import Breaker
from dashboard.live.pod_protection import ObservedLine, observed_lines
from fuseboard.contract.protection_fields import TIERS

#: A queue above this part of its places is highlighted, before it refuses calls.
NEARLY_FULL = 0.8


@dataclass(frozen=True, kw_only=True)
class TierRow(SlotFigures):
    #: Places of all queues; ``None`` where the length follows the service rate.
    places: int | None

    @property
    def hot(self) -> bool:
        return self.refused_per_s > 0 or self.queued > NEARLY_FULL * (self.places or inf)


@dataclass(frozen=True, kw_only=True)
class Protection:
    #: The parts that are on, in words.
    parts: str
    tiers: tuple[TierRow, ...]
    calls: CallFigures
    retries: bool
    suggestions: tuple[str, ...]
    #: How long calls take and wait, and what code of the services does wrong.
    waits: tuple[str, ...]
    mistakes: tuple[str, ...]
    #: Parts of it that decide and count, but refuse nothing.
    observed: tuple[ObservedLine, ...]


def protection_of(breaker: Breaker | None, facts: Facts) -> Protection | None:
    """``None`` while nothing protects pods from it."""
    if breaker is None or not breaker.dependency.protection:
        return None
    document, calls = breaker.dependency.protection, breaker.protected or CallFigures()
    bulkhead: dict[str, Any] = document.get("bulkhead", {})
    rows = []
    for tier in calls.every_tier if bulkhead else ():
        places = None
        if not bulkhead["adaptive"]:
            places = bulkhead["queues"][TIERS.index(tier.tier)] * calls.callers
        rows.append(TierRow(**vars(tier), places=places))
    words = {"bulkhead": "bulkhead", "local_rate": "local rate", "retry": "retries"}
    return Protection(
        parts=", ".join(word for part, word in words.items() if part in document) or "no part of it",
        tiers=tuple(rows),
        calls=calls,
        retries="retry" in document,
        observed=observed_lines(
            facts, (one for one in facts.observing_now if one.part in ("shedding", *document))
        ),
        suggestions=tuple(_suggestions(calls, bulkhead, document.get("tier", "standard"))),
        waits=tuple(_waits(calls)),
        mistakes=tuple(_mistakes(calls)),
    )


def _waits(calls: CallFigures) -> Iterator[str]:
    """Each is a mean over the pods."""
    if calls.mean_ms is not None and calls.p95_ms is not None:
        wait = (
            f"; p95 of the wait for a slot {duration(calls.wait_p95_ms)}"
            if calls.wait_p95_ms is not None
            else ""
        )
        yield (
            f"In the last 5 to 10 s, calls took {duration(calls.mean_ms)} on average,"
            f" p95 {duration(calls.p95_ms)}{wait}."
        )
    if calls.queue_size is not None and calls.queue_predicted is not None:
        yield (
            f"The adaptive queues have {number(calls.queue_size)} places: {number(calls.queued)} calls wait,"
            f" Little's law predicts {number(calls.queue_predicted)}."
        )


def _mistakes(calls: CallFigures) -> Iterator[str]:
    if calls.reclaimed:
        yield (
            f"Since these pods started, {number(calls.reclaimed)} calls were never reported and lost their"
            " slots: a service must report each permit, or use a block."
        )
    if calls.nested:
        yield (
            f"Since these pods started, {number(calls.nested)} calls found no free slot while their own task"
            " had one: a service guards the same call twice."
        )


def duration(ms: float) -> str:
    return f"{rounded(ms / 1000, 2)} s" if ms >= 1000 else f"{ms:.0f} ms"


def _suggestions(calls: CallFigures, bulkhead: Mapping[str, Any], tier: str) -> list[str]:
    """Advice about sizes from the present latency."""
    if calls.mean_ms is None or calls.mean_ms <= 0 or not bulkhead:
        return []
    mean = duration(calls.mean_ms)
    slots = slots_of_tier(bulkhead, tier)
    rate = suggested_rate(slots, calls.mean_ms)
    which = "slots" if slots == bulkhead["max_concurrent"] else f"slots of {tier} calls"
    found = [
        f"{bulkhead_words(bulkhead, tier)}.",
        f"At {mean} per call, {slots:,} {which} of a pod suit a local rate of {rate:,} per 60 s"
        f" ({MARGIN_PERCENT} % of what they can finish).",
    ]
    if calls.callers and calls.first_calls_per_s:
        needed = slots_needed(calls.first_calls_per_s / calls.callers, calls.mean_ms)
        found.append(f"Calls need {number(needed)} slots of each pod on average.")
    return found
