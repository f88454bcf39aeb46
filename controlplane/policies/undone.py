"""Reverted revisions: the later ones that undid them, and whether a part of them stayed."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from controlplane.policies.fields import Fields, different
from controlplane.policies.models import Change, Revision

#: A revision that changed more things is compared by their number: to compare 100,000 takes seconds.
_COMPARED = 1_000


@dataclass(frozen=True)
class Revert:
    number: int
    #: Things that it changed back.
    names: tuple[str, ...]


@dataclass(frozen=True)
class Undone:
    #: The oldest first.
    reverts: tuple[Revert, ...]
    #: Whether nothing of the revision stayed. Otherwise, it can be reverted again.
    whole: bool


def undone(environment: str, numbers: Collection[int]) -> dict[int, Undone]:
    """Return revision -> what its reverts undid, for those of ``numbers`` that have one."""
    rows = Revision.objects.filter(environment=environment, reverts__in=numbers).order_by("number")
    reverts: dict[int, list[Revision]] = defaultdict(list)
    for row in rows:
        reverts[row.reverts or 0].append(row)
    made = Revision.objects.filter(environment=environment, number__in=reverts.keys())
    return {row.number: _undone(row, reverts[row.number]) for row in made}


def _undone(row: Revision, reverts: list[Revision]) -> Undone:
    if row.changed > _COMPARED:
        by = tuple(Revert(each.number, ()) for each in reverts)
        return Undone(by, whole=any(each.changed >= row.changed for each in reverts))
    made = list(row.changes.all())
    later = Change.objects.filter(
        revision__environment=row.environment,
        revision__number__gt=row.number,
        revision__number__lte=reverts[-1].number,
        name__in={change.name for change in made},
    )
    names: dict[int, list[str]] = defaultdict(list)
    newest: dict[tuple[str, str], Fields] = {}
    for change in later.select_related("revision").order_by("revision__number", "kind", "name"):
        newest[change.kind, change.name] = change.after or {}
        names[change.revision.number].append(change.name)
    by = tuple(Revert(each.number, tuple(names[each.number])) for each in reverts)
    return Undone(by, whole=not any(_stayed(change, newest) for change in made))


def _stayed(made: Change, newest: dict[tuple[str, str], Fields]) -> bool:
    """Whether a field still had the value of the revision after its last revert."""
    fields = newest.get((made.kind, made.name))
    if not fields:
        # It was not changed since, or it is deleted, as the revision may have done.
        return fields is None or made.after is None
    changed = different(made.before, made.after)
    return any(fields.get(name) == after for name, (_, after) in changed.items())
