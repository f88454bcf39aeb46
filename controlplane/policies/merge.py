"""Merges a change into a thing that was changed again since, unit by unit.

A unit is what only makes sense together: the numbers of a rate, or a single field. Merging field by
field would combine an old limit with a newer window, which is a rate that no person chose.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from controlplane.policies.fields import Fields, different

#: Columns of a limit that form one unit. A temporary quota ends as a whole.
RATE = frozenset({"limit", "window_s", "burst", "algorithm", "period", "expires_at", "returns_to"})
_LIMITS = frozenset({"quotas", "vendor_limits", "subject_limits"})

#: The fields of the raise of a budget, and their unit.
_RAISE = frozenset({"raised_to", "raised_until"})
RAISE = "raise"

#: The unit of a thing that is created or removed.
WHOLE = ""


@dataclass(frozen=True)
class Merged:
    #: The thing after the merge; ``None`` if it does not exist then.
    fields: Fields | None
    #: Units that get the wanted values.
    applied: list[str] = field(default_factory=list)
    #: Units that already have them.
    already: list[str] = field(default_factory=list)
    #: Units that another edit has changed. They stay as they are.
    kept: list[str] = field(default_factory=list)


def merge(
    base: Fields | None, wanted: Fields | None, now: Fields | None, *, overwrite: Collection[str] = ()
) -> Merged:
    """Apply the change from ``base`` to ``wanted`` to ``now``.

    ``None`` is a thing that does not exist. A unit that differs from both is kept, unless it is in
    ``overwrite``. Merging a change into its own base gives ``wanted``.
    """
    if wanted is None or now is None or base is None:
        whole = _whole(base, wanted, now, overwrite)
        if whole is not None:
            return whole
    old, new, present = base or {}, wanted or {}, now or {}
    fields_after = dict(present)
    merged = Merged(fields_after)
    for unit, fields in units((old, new, present)).items():
        was, to, at = (_part(state, fields) for state in (old, new, present))
        if was == to:
            continue
        if at == to:
            merged.already.append(unit)
        elif at == was or unit in overwrite:
            for name in fields:
                fields_after.pop(name, None)
            fields_after.update(to)
            merged.applied.append(unit)
        else:
            merged.kept.append(unit)
    return merged


def _whole(
    base: Fields | None, wanted: Fields | None, now: Fields | None, overwrite: Collection[str]
) -> Merged | None:
    """Merge the existence of a thing; ``None`` if all that differs are its fields."""
    if wanted is None:
        if now is None:
            return Merged(None, already=[WHOLE] if base is not None else [])
        if base is not None and (not different(base, now) or WHOLE in overwrite):
            return Merged(None, applied=[WHOLE])
        return Merged(now, kept=[WHOLE] if base is not None else [])
    if now is None:
        if base is None or WHOLE in overwrite:
            return Merged(wanted, applied=[WHOLE])
        return Merged(None, kept=[WHOLE])
    return None


def units(states: Iterable[Fields]) -> dict[str, list[str]]:
    """Return unit -> its fields among these states of one thing, sorted.

    A limit that one state lacks, or that follows a template, is a unit as a whole: ``quotas.requests``.
    The units of any other limit are ``quotas.requests:rate`` and its other columns.
    """
    states = [state for state in states if state]
    #: Field -> ``quotas.requests`` for ``quotas.requests.burst``; empty for a field of no limit.
    named = {
        name: name.rpartition(".")[0] if name.partition(".")[0] in _LIMITS else ""
        for state in states
        for name in state
        if name != "version"
    }
    limits = {limit for limit in named.values() if limit}
    apart = {
        limit
        for limit in limits
        if all(f"{limit}.limit" in state and f"{limit}.template" not in state for state in states)
    }
    found: dict[str, list[str]] = {}
    for name in sorted(named):
        limit = named[name]
        if not limit:
            unit = _setting(name)
        elif limit not in apart:
            unit = limit
        else:
            column = name.rpartition(".")[2]
            # Not a dot: the name of a limit may have dots, and end with the name of a column.
            unit = f"{limit}:{'rate' if column in RATE else column}"
        found.setdefault(unit, []).append(name)
    return dict(sorted(found.items()))


def _setting(name: str) -> str:
    """Return the field itself, or what it only makes sense with.

    That is the rate of a template, the raise of a budget, a part of a protection, whose values are checked
    together, or a price.
    """
    if name in RATE:
        return "rate"
    if name in _RAISE:
        return RAISE
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in ("protection", "prices") else name


def _part(state: Fields, fields: list[str]) -> Fields:
    return {name: state[name] for name in fields if name in state}
