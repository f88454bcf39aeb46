"""Changed things as pages list them: each with its lines in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from controlplane.audit.action_words import action_words
from controlplane.editing.edits.shown import entity_as_of, quotas_to_inherit
from controlplane.editing.plans.difference import what
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields
from controlplane.policies.history import Changed, changes_of
from controlplane.policies.models import Revision
from controlplane.policies.state import read_entity
from dashboard.words.change_words import ChangeWords, Tiers, change_words

#: Items of a revision that decide whether it adds or changes.
_READ = 3


@dataclass(frozen=True)
class ChangedItem:
    """One changed thing, as a page displays it."""

    kind: str
    name: str
    what: str
    lines: list[ChangeWords]


class _Described(Protocol):
    @property
    def what(self) -> str: ...
    @property
    def lines(self) -> Sequence[ChangeWords]: ...


def are_new(items: Sequence[_Described]) -> bool:
    """Whether all of them were created, or have only values that were not there."""
    return bool(items) and all(
        one.what == "created" or (one.lines and not any(line.before for line in one.lines)) for one in items
    )


def revision_words(row: Revision) -> str:
    """The action of a revision in words; an edit that only adds says so."""
    # A bulk edit has up to 100,000 items.
    few = row.changes.order_by("kind", "name")[:_READ]
    before, after = (TiersAsOf(row.environment, number) for number in (row.number - 1, row.number))
    items = changed_items(few, before, after)
    return action_words(row.action, added=are_new(items))


class TiersAsOf:
    """The quotas that tenants inherit from each tier as of a revision; ``None`` for the newest."""

    def __init__(self, environment: str, number: int | None) -> None:
        self._environment, self._number = environment, number
        self._quotas = cache(self._read)

    def __call__(self, tier: str) -> Mapping[str, Fields]:
        return self._quotas(tier)

    def _read(self, tier: str) -> Mapping[str, Fields]:
        number = self._number
        if number is None:
            number = environment_of(self._environment).revision
        return quotas_to_inherit(entity_as_of(self._environment, number, "tier", tier))


class TiersInTime:
    """The quotas that tenants inherit as of each revision from ``first`` on: two queries for each tier."""

    def __init__(self, environment: str, first: int) -> None:
        self._later = cache(lambda tier: changes_of(environment, "tier", tier, after=first))
        self._present = cache(lambda tier: read_entity(environment, "tier", tier))

    def as_of(self, number: int) -> Tiers:
        return lambda tier: quotas_to_inherit(self._fields(tier, number))

    def _fields(self, tier: str, number: int) -> Fields | None:
        change = next((one for one in self._later(tier) if one.revision.number > number), None)
        fields: Fields | None = self._present(tier) if change is None else change.before
        return fields


class TiersWith:
    """Tiers after some changes: a tenant may follow a tier that is changed with it."""

    def __init__(self, tiers: Tiers, changes: Iterable[Any]) -> None:
        self._tiers = tiers
        self._changed = {each.name: each.after for each in changes if each.kind == "tier"}

    def __call__(self, tier: str) -> Mapping[str, Fields]:
        if tier in self._changed:
            return quotas_to_inherit(self._changed[tier])
        return self._tiers(tier)


def changed_items(changes: Iterable[Any], before: Tiers, after: Tiers) -> list[ChangedItem]:
    """Return the items of ``Change`` or ``Changed``: each has kind, name, before and after."""
    found = []
    for each in changes:
        change = Changed(each.kind, each.name, each.before, each.after)
        lines = change_words(change, before, after)
        found.append(ChangedItem(change.kind, change.name, what(change), lines))
    return found


def items_to_come(environment: str, changes: Sequence[Any], most: int) -> list[ChangedItem]:
    """Return the first items of changes that are not made yet, compared with the newest revision."""
    tiers = TiersAsOf(environment, None)
    return changed_items(changes[:most], tiers, TiersWith(tiers, changes))
