"""The changes that a plan would make, as text and as data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import unified_diff
from itertools import islice
from typing import Any

from controlplane.editing.plans.plan import Plan
from controlplane.editing.plans.resolving import resolve
from controlplane.fleet.older_agents import ignored_words, older_scripts_words
from controlplane.policies.breaker_advice import advice
from controlplane.policies.carried_counts import carried
from controlplane.policies.document import environment_of
from controlplane.policies.fields import different
from controlplane.policies.history import Changed, changes_between
from controlplane.policies.latency_advice import latency_advice_after
from controlplane.policies.newer_settings import newly_used
from controlplane.policies.protection_advice import bulkheads_after, queue_max_after
from controlplane.policies.state import names_of, read_state, tenants_following

#: The most things that a text lists. The rest is counted.
MAX_SHOWN = 200
#: Longer texts are not compared line by line: it takes the square of their length.
_MAX_COMPARED = 3_000

_SIGNS = {"created": "+", "changed": "~", "removed": "-"}


@dataclass(frozen=True)
class Difference:
    environment: str
    #: The revision of the configuration that the plan was compared with.
    revision: int
    changes: Sequence[Changed]

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of created, changed and removed things."""
        counts = dict.fromkeys(_SIGNS, 0)
        for change in self.changes:
            counts[what(change)] += 1
        return counts

    @property
    def by_kind(self) -> dict[str, int]:
        """Return the numbers by kind, such as ``tenant.created``, for the audit and for progress."""
        counts: dict[str, int] = {}
        for change in self.changes:
            name = f"{change.kind}.{what(change)}"
            counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items()))

    @property
    def advice(self) -> list[str]:
        """Return what happens to spent calls, what older pods ignore, and warnings about breakers and queues.
        They prevent nothing. Of very many, the first.
        """
        spent = list(islice(carried(self.environment, self.changes), MAX_SHOWN))
        older = [older_scripts_words(self.environment)] if spent else []
        older.append(ignored_words(self.environment, newly_used(self.changes)))
        return [
            *spent,
            *filter(None, older),
            *islice(advice(self.changes), MAX_SHOWN),
            *queue_max_after(self.environment, self.changes),
            *islice(self._latency_advice(), MAX_SHOWN),
        ]

    def _latency_advice(self) -> Iterator[str]:
        for name, text in latency_advice_after(self.environment, self.changes):
            yield f"dependency {name}: {text}"

    @property
    def notes(self) -> list[str]:
        """Return how many calls new and changed bulkheads admit at once. Of very many, the first."""
        return list(islice(bulkheads_after(self.changes), MAX_SHOWN))

    def to_text(self, *, most: int = MAX_SHOWN) -> str:
        return "\n".join(self._lines(most)) + "\n"

    def to_document(self, *, most: int = MAX_SHOWN) -> dict[str, Any]:
        shown = self.changes[:most]
        return {
            "environment": self.environment,
            "revision": self.revision,
            **self.counts,
            "changes": [
                {
                    "kind": change.kind,
                    "name": change.name,
                    "what": what(change),
                    "fields": [
                        {"field": field, "before": before, "after": after}
                        for field, (before, after) in different(change.before, change.after).items()
                    ],
                }
                for change in shown
            ],
            "notes": self.notes,
            "advice": self.advice,
            "left_off": len(self.changes) - len(shown),
        }

    def _lines(self, most: int) -> Iterator[str]:
        where = f"{self.environment} at revision {self.revision}"
        if not self.changes:
            yield f"{where}: nothing to change"
            return
        yield f"{where}: {summary(self.counts)}"
        for change in self.changes[:most]:
            yield f"{_SIGNS[what(change)]} {change.kind} {change.name}"
            if change.after is not None:
                for field, (before, after) in different(change.before, change.after).items():
                    if change.kind == "descriptors":
                        yield from _text_lines(before or "", after)
                    else:
                        yield f"    {field}: {_change(before, after)}"
        if len(self.changes) > most:
            yield f"... and {len(self.changes) - most:,} more"
        for text in self.notes:
            yield f"note: {text}"
        for text in self.advice:
            yield f"warning: {text}"


def difference(
    environment: str, plan: Plan, *, prune: bool = False, at: datetime | None = None
) -> Difference:
    """Compare a plan with the present configuration. Nothing is written.

    ``at`` is when the plan is applied: times in it must be after that, or soon after. By default now.

    Raises ``PlanErrors`` when the plan does not fit the configuration, and ``NotFound`` for an
    unknown environment.
    """
    revision = environment_of(environment).revision
    # A tenant may refer to a removed thing.
    all_tenants = prune and not plan.sections.isdisjoint({"tenant", "template", "tier", "dependency"})
    named = names_of(plan.things, "tenant")
    named |= tenants_following(environment, names_of(plan.things, "template"))
    state = read_state(environment, tenants=None if all_tenants else named)
    wanted = resolve(environment, plan, state, prune=prune, at=at)
    return Difference(environment, revision, changes_between(state, wanted))


def what(change: Changed) -> str:
    if change.before is None:
        return "created"
    return "removed" if change.after is None else "changed"


def summary(counts: dict[str, int]) -> str:
    """``1 to create, 2 to change, 0 to remove``."""
    words = {"created": "create", "changed": "change", "removed": "remove"}
    return ", ".join(f"{count:,} to {words[name]}" for name, count in counts.items())


def _change(before: Any, after: Any) -> str:
    if before is None:
        return _word(after)
    return f"{_word(before)} -> {'removed' if after is None else _word(after)}"


def _text_lines(before: str, after: str) -> Iterator[str]:
    """The lines of a text that change, at most ``MAX_SHOWN``; of a very long text, only how many it has."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > _MAX_COMPARED:
        yield f"    {len(old):,} lines -> {len(new):,} lines"
        return
    lines = [line.rstrip() for line in unified_diff(old, new, n=1, lineterm="")][2:]
    yield from (f"    {line}" for line in lines[:MAX_SHOWN])
    if len(lines) > MAX_SHOWN:
        yield f"    ... and {len(lines) - MAX_SHOWN:,} more lines"


def _item(value: Any) -> str:
    # A route of a pod's protection.
    return f"{value['pattern']} {value['sla_ms']:,} ms" if isinstance(value, dict) else str(value)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(_item, value)) + "]"
    return f"{value:,}" if isinstance(value, int) else repr(value) if isinstance(value, str) else str(value)
