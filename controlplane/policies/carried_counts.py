"""Describes what happens to spent counts when people change how a limit counts, for forms and plans."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from controlplane.policies.fields import Fields, limits_in, tier_fields
from controlplane.policies.history import Changed
from controlplane.policies.limits import full_columns
from controlplane.policies.models import Tier
from fuseboard.contract.words import Algorithm

#: Tier -> quota -> its columns, before and after the changes.
Tiers: TypeAlias = tuple[Mapping[str, Mapping[str, Fields]], Mapping[str, Mapping[str, Fields]]]

#: The most owners of one limit that a sentence names.
_MAX_NAMED = 3

_SECTIONS = {
    "environment": "subject_limits",
    "tier": "quotas",
    "tenant": "quotas",
    "dependency": "vendor_limits",
}


def carried_words(before: Fields, after: Fields) -> str:
    """Return what the changed limit takes over from the old one; empty if it counts as before."""
    old, new = full_columns(before), full_columns(after)
    if _counter(old) != _counter(new):
        return "counting starts at 0, in another counter for each caller"
    if old["measure"] != new["measure"]:
        return f"what is spent in {old['measure']} counts in {new['measure']}, without conversion"
    if _rule(old) == _rule(new):
        return ""
    was, becomes = Algorithm(old["algorithm"]), Algorithm(new["algorithm"])
    if becomes is Algorithm.CONCURRENCY:
        return "slots start empty: calls in progress occupy none"
    if was is Algorithm.CONCURRENCY:
        return "counting starts at 0: calls in progress are not carried over"
    if was is becomes is Algorithm.FIXED_WINDOW:
        return (
            f"{_period(new)} includes all that {_period(old)} includes now, and nothing from before it;"
            " it can refuse too much until it ends"
        )
    if was is Algorithm.FIXED_WINDOW:
        return f"calls spent in {_period(old)} are carried over as spent now, for one window at most"
    if becomes is Algorithm.FIXED_WINDOW:
        known = "of the last window" if was is Algorithm.SLIDING_WINDOW else "that are not refilled yet"
        return f"spent calls {known} are carried over if they can belong to {_period(new)}"
    if was is Algorithm.TOKEN_BUCKET:
        return "spent calls that are not refilled yet are carried over"
    return "spent calls of the last window are carried over"


def carried(environment: str, changes: Sequence[Changed]) -> Iterator[str]:
    """A sentence for each way in which limits are changed, with the limits."""
    found: dict[tuple[str, str], list[str]] = {}
    tiers = _tiers(environment, changes)
    for change in changes:
        for limit, before, after in _limits(change, tiers):
            words = carried_words(before, after)
            if words:
                found.setdefault((limit, words), []).append(f"{change.kind} {change.name}".strip())
    for (limit, words), owners in found.items():
        more = len(owners) - _MAX_NAMED
        named = ", ".join(owners[:_MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        yield f"{named}{', ' if limit else ''}{limit}: {words}."


def _counter(full: Fields) -> tuple[object, ...]:
    """Return what a limit has a counter for, apart from its name and its owner."""
    return full["dependency"], full["service"], tuple(full["per"])


def _rule(full: Fields) -> tuple[object, ...]:
    """Return how a limit counts. Its size alone changes nothing about what is spent."""
    algorithm = full["algorithm"]
    if algorithm == Algorithm.CONCURRENCY:
        return (algorithm,)
    if algorithm == Algorithm.FIXED_WINDOW:
        return algorithm, full["period"], full["time_zone"]
    return algorithm, full["window_s"]


def _period(full: Fields) -> str:
    return f"the {full['period']} in {full['time_zone']}"


def _tiers(environment: str, changes: Sequence[Changed]) -> Tiers:
    """The quotas of each tier before and after, if a tenant changes: its own replace those of its tier."""
    if not any(change.kind == "tenant" and change.before and change.after for change in changes):
        return {}, {}
    rows = Tier.objects.filter(environment=environment).prefetch_related("quotas")
    before = {row.name: limits_in("quotas", tier_fields(row)) for row in rows}
    changed = {one.name: limits_in("quotas", one.after or {}) for one in changes if one.kind == "tier"}
    return before, before | changed


def _limits(change: Changed, tiers: Tiers) -> Iterator[tuple[str, Fields, Fields]]:
    """The limits of a changed thing that exist before and after: name, old columns, new columns."""
    if change.before is None or change.after is None:
        return
    if change.kind == "template":
        yield "", change.before, change.after
    elif section := _SECTIONS.get(change.kind):
        before, after = (limits_in(section, fields) for fields in (change.before, change.after))
        if change.kind == "tenant":
            was, becomes = change.before.get("tier", ""), change.after.get("tier", "")
            # A tier has a sentence itself: a tenant that stays in it needs none.
            own = None if was != becomes else before.keys() | after.keys()
            before, after = (
                {name: columns for name, columns in quotas.items() if own is None or name in own} | limits
                for quotas, limits in ((tiers[0].get(was, {}), before), (tiers[1].get(becomes, {}), after))
            )
        for limit in after:
            if limit in before:
                yield limit, before[limit], after[limit]
