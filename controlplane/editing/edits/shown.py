"""Reads what a page showed as of a revision, and what other people changed since."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.policies.fields import Fields, different, limits_in
from controlplane.policies.history import changes_of
from controlplane.policies.limits import ALONE
from controlplane.policies.models import Change, Revision
from controlplane.policies.state import State, read_entity


def entity_as_of(environment: str, number: int, kind: str, name: str) -> Fields | None:
    """Return one entity as it was at a revision; ``None`` if it did not exist then."""
    change = next(iter(changes_of(environment, kind, name, after=number)), None)
    if change is not None:
        before: Fields | None = change.before
        return before
    return read_entity(environment, kind, name)


def quotas_to_inherit(tier: Fields | None) -> dict[str, Fields]:
    """Return the quotas of a tier as a tenant inherits them: without the template that they follow."""
    return {
        name: {column: value for column, value in columns.items() if column not in ALONE}
        for name, columns in limits_in("quotas", tier or {}).items()
    }


@dataclass(frozen=True)
class MovedQuota:
    """A quota that a tenant inherits, and that is another one than the page showed."""

    name: str
    #: Field -> its value when the page was shown, and now.
    fields: dict[str, tuple[Any, Any]]
    revision: Revision


def moved_quotas(
    environment: str, number: int, tenant: str, tiers: tuple[str, str], names: Collection[str], now: State
) -> Iterator[MovedQuota]:
    """Yield which of these quotas of its tier a page of revision ``number`` showed differently.

    ``tiers`` are those of the tenant then and now.
    """
    if not names:
        return
    then, present = tiers
    before = quotas_to_inherit(entity_as_of(environment, number, "tier", then))
    after = quotas_to_inherit(now.get(("tier", present)))
    later: list[Change] = []
    for name in sorted(names):
        moved = different(before.get(name), after.get(name))
        if not moved:
            continue
        later = later or [
            change
            for thing in {("tier", then), ("tier", present), ("tenant", tenant)}
            for change in changes_of(environment, *thing, after=number)
        ]
        mark = f"quotas.{name}."
        rows = [
            change.revision
            for change in later
            for field in different(change.before, change.after)
            if field.startswith(mark) or field == "tier"
        ]
        if rows:
            fields = {f"{mark}{column} of tier {present}": pair for column, pair in moved.items()}
            yield MovedQuota(name, fields, max(rows, key=lambda row: row.number))
