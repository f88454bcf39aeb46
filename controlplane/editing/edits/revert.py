"""Undoes what one revision changed, and nothing that was changed since."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.edits.expiry import lasting_columns
from controlplane.editing.plans.plan import PlanErrors
from controlplane.editing.plans.resolving import PREFIX, Wanted, fit
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import EditConflict, InvalidEdit, find
from controlplane.policies.conflicts import describe_changes
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, different, limits_in
from controlplane.policies.history import Changed, changes_between
from controlplane.policies.merge import RAISE, WHOLE, merge, units
from controlplane.policies.models import Change
from controlplane.policies.models import Revision as RevisionRow
from controlplane.policies.state import EntityKey, State, read_state, tenants_following
from controlplane.spending.budget_fields import NOT_RAISED, is_over
from controlplane.validation import check_reason

#: The choice for a unit that another edit has changed since.
OnConflict = Literal["keep", "overwrite", "fail"]
#: Entity -> the units to revert; an empty collection for all of them.
Chosen = Mapping[EntityKey, Collection[str]]
#: Raises if the caller may not make these changes.
Check = Callable[[Sequence[Changed]], None]

_REFERRED = ("tier", "dependency", "template")
#: The newest edits are looked up for so many units that stay. Pages and the API list no more.
_EXPLAINED = 1_000


@dataclass(frozen=True)
class UnitRevert:
    """The change of one unit of one entity. An empty ``unit`` is the entity itself."""

    kind: str
    name: str
    unit: str
    #: Field -> value now and value after the revert, where they differ.
    fields: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class KeptUnit:
    """A unit that stays, because another edit or its template decides it, or because its time is over."""

    kind: str
    name: str
    unit: str
    #: Its fields now, and as a revert would restore them.
    fields: dict[str, tuple[Any, Any]]
    #: The newest edit that changed it; ``None`` if its time is over or it follows ``template``.
    revision: int | None
    by: str = ""
    at: datetime | None = None
    reason: str = ""
    #: The earlier value was temporary and would have ended by now.
    over: bool = False
    #: The template that the value comes from.
    template: str = ""


@dataclass(frozen=True)
class Reverted:
    """The result of a revert, or its preview."""

    #: The revision it made, or the present one if there was nothing to do.
    revision: int
    reverted: list[UnitRevert]
    #: Kind, name and unit of what is already as it was before.
    already: list[tuple[str, str, str]]
    kept: list[KeptUnit]
    changes: list[Changed]


def is_revertible(row: RevisionRow) -> bool:
    """Whether the revision changed configuration that can return to what it was before."""
    return bool(row.changed) and row.action != "environment.created"


def preview_revert(
    *,
    environment: str,
    number: int,
    things: Chosen | None = None,
    on_conflict: OnConflict = "keep",
    check: Check | None = None,
) -> Reverted:
    """Return what ``revert`` would do now. Nothing is written. Raises as ``revert`` does."""
    head = environment_of(environment).revision
    return _planned(environment, _revision(environment, number), head, things, on_conflict, check)


def revert(
    *,
    environment: str,
    number: int,
    reason: str,
    actor: Actor,
    expected_revision: int | None,
    things: Chosen | None = None,
    on_conflict: OnConflict = "keep",
    check: Check | None = None,
) -> Reverted:
    """Restore what revision ``number`` changed, as a new revision.

    What another edit has changed since stays, unless ``on_conflict`` is ``overwrite``; ``fail`` raises
    ``EditConflict`` instead. ``things`` restricts the revert. ``check`` gets its changes. If nothing is
    left to do, nothing is written. Raises ``EditConflict`` when an entity in question was changed after
    ``expected_revision``, and ``InvalidEdit`` when the result would contradict the rest.
    """
    check_reason(reason)
    row = _revision(environment, number)
    found = _planned(environment, row, environment_of(environment).revision, things, on_conflict, check)
    _check_unmoved(environment, found, expected_revision)
    if not found.changes:
        return found
    with revise(environment=environment, actor=actor, reason=reason, reverts=number) as revision:
        if found.revision != revision.number - 1:
            # Another edit was faster. Nothing else can change while this revision is being made.
            found = _planned(environment, row, revision.number - 1, things, on_conflict, check)
            _check_unmoved(environment, found, expected_revision)
        write_changes(revision, found.changes)
        _audit(revision, found, number)
    return Reverted(revision.number, found.reverted, found.already, found.kept, found.changes)


def _revision(environment: str, number: int) -> RevisionRow:
    return find(RevisionRow.objects.filter(environment=environment), "revision", number=number)


def _planned(
    environment: str,
    row: RevisionRow,
    head: int,
    things: Chosen | None,
    on_conflict: OnConflict,
    check: Check | None,
) -> Reverted:
    made = _changes_of(row, things)
    state = _state_for(environment, made)
    found = Reverted(head, [], [], [], [])
    wanted: Wanted = {}
    for change in made:
        thing = (change.kind, change.name)
        chosen = (things or {}).get(thing, ())
        _plan_entity(environment, change, state.get(thing), chosen, on_conflict, found, wanted)
    _say_who(environment, row.number, found)
    if on_conflict == "fail" and (later := [each for each in found.kept if not each.over]):
        raise _conflict(row.number, head, later)
    if wanted:
        try:
            fitted = fit(environment, wanted, state)
        except PlanErrors as errors:
            said = [f"{error.where}: {error.message}" for error in errors.found[:5]]
            raise InvalidEdit({"revision": said}) from errors
        _move_undecided(found, state, fitted)
        found.changes.extend(changes_between(state, fitted))
    if check is not None:
        check(found.changes)
    return found


def _changes_of(row: RevisionRow, things: Chosen | None) -> list[Changed]:
    rows = row.changes.order_by("kind", "name")
    if things is not None and len(things) <= _EXPLAINED:
        rows = rows.filter(name__in={name for _, name in things})
    changes = [
        Changed(change.kind, change.name, change.before, change.after)
        for change in rows.iterator(10_000)
        if things is None or (change.kind, change.name) in things
    ]
    if not changes and things is None:
        message = "This revision changed no configuration. To end an override, open its breaker."
        raise InvalidEdit({"revision": [message]})
    if things is not None and len(changes) < len(things):
        known = {(change.kind, change.name) for change in changes}
        kind, name = next(thing for thing in things if thing not in known)
        raise InvalidEdit({"things": [f"Revision {row.number} did not change {kind} {name!r}."]})
    return changes


def _state_for(environment: str, made: list[Changed]) -> State:
    """Read the entities in question, and everything that may refer to them."""
    if any(change.kind in _REFERRED and change.before is None for change in made):
        return read_state(environment, tenants=None)
    tenants = {change.name for change in made if change.kind == "tenant"}
    templates = {change.name for change in made if change.kind == "template"}
    return read_state(environment, tenants=tenants | tenants_following(environment, templates))


def _plan_entity(
    environment: str,
    change: Changed,
    now: Fields | None,
    chosen: Collection[str],
    on_conflict: OnConflict,
    found: Reverted,
    wanted: Wanted,
) -> None:
    """Merge one entity back, and add to ``found`` and ``wanted`` what becomes of its units."""
    kind, name = change.kind, change.name
    if kind == "environment" and change.before is None:
        raise InvalidEdit({"revision": ["It created the environment, which cannot be removed."]})
    states = [state for state in (change.before, change.after, now) if state]
    fields_of = {WHOLE: sorted({field for state in states for field in state}), **units(states)}
    if unknown := set(chosen) - fields_of.keys():
        raise InvalidEdit({"things": [f"{kind} {name!r} has no unit {min(unknown)!r}."]})
    before, over = _without_ended(environment, change, now, fields_of)
    overwrite = fields_of.keys() if on_conflict == "overwrite" else ()
    merged = merge(change.after, before, now, overwrite=overwrite)
    back = merged.fields
    if chosen:
        back = _only(chosen, fields_of, now, back)
    for unit in merged.applied:
        if not chosen or unit in chosen:
            shown = _moves(fields_of[unit], now, back)
            found.reverted.append(UnitRevert(kind, name, unit, shown))
    found.already.extend((kind, name, unit) for unit in merged.already if unit not in over)
    for unit in [*merged.kept, *over]:
        if not chosen or unit in chosen:
            shown = _moves(fields_of[unit], now, change.before)
            found.kept.append(KeptUnit(kind, name, unit, shown, revision=None, over=unit in over))
    if (back is None) != (now is None) or different(now, back):
        wanted[kind, name] = back


def _without_ended(
    environment: str, change: Changed, now: Fields | None, fields_of: dict[str, list[str]]
) -> tuple[Fields | None, list[str]]:
    """Return the earlier state without temporary quotas that would be over by now, and their units.

    Where the quota exists now, it stays. Where it does not, the quota that applied afterwards returns. The
    raise of a budget stays as it is now.
    """
    before = change.before
    if before is None:
        return None, []
    kept, over = dict(before), []
    if change.kind == "budget" and is_over(before, timezone.now()):
        after = change.after or NOT_RAISED
        if now is not None and all(before[field] == after[field] for field in NOT_RAISED):
            return before, []
        return kept | {field: (now or NOT_RAISED)[field] for field in NOT_RAISED}, [RAISE] if now else []
    prefix = PREFIX.get(change.kind, "")
    present = now or {}
    for limit, columns in limits_in(prefix, before).items():
        if not _is_past(columns.get("expires_at")):
            continue
        mark = f"{prefix}.{limit}"
        exists = limit in limits_in(prefix, present)
        returned = None if exists else lasting_columns(environment, columns.get("returns_to"))
        for unit, fields in fields_of.items():
            if unit not in (mark, f"{mark}:rate") and (exists or not unit.startswith(f"{mark}:")):
                continue
            if returned is None:
                over.append(unit)
            for field in fields:
                kept.pop(field, None)
                if field in present:
                    kept[field] = present[field]
        if returned is not None:
            again = {f"{mark}.{column}": value for column, value in returned.items()}
            kept |= again
            fields_of[mark] = sorted({*fields_of.get(mark, ()), *again})
    return kept, over


def _is_past(moment: str | None) -> bool:
    return moment is not None and datetime.fromisoformat(moment) <= timezone.now()


def _only(
    chosen: Collection[str], fields_of: Mapping[str, list[str]], now: Fields | None, back: Fields | None
) -> Fields | None:
    """Return ``now`` with the chosen units as in ``back``."""
    if WHOLE in chosen:
        return back
    if now is None or back is None:
        # It is created or removed as a whole, so there are no units to choose.
        return now
    picked = dict(now)
    for unit in chosen:
        for field in fields_of[unit]:
            picked.pop(field, None)
            if field in back:
                picked[field] = back[field]
    return picked


def _move_undecided(found: Reverted, state: State, fitted: Wanted) -> None:
    """Move units that stay as they are, because a template decides them, from ``reverted`` to ``kept``."""
    reverted = []
    for unit in found.reverted:
        thing = (unit.kind, unit.name)
        after = fitted.get(thing) or {}
        if unit.unit == WHOLE or thing not in fitted:
            reverted.append(unit)
            continue
        if shown := _moves(unit.fields, state.get(thing), after):
            reverted.append(replace(unit, fields=shown))
            continue
        template = after.get(f"{unit.unit.partition(':')[0]}.template", "")
        stays = KeptUnit(unit.kind, unit.name, unit.unit, unit.fields, None, template=template)
        found.kept.append(stays)
    found.reverted[:] = reverted


def _moves(fields: Collection[str], now: Fields | None, then: Fields | None) -> dict[str, tuple[Any, Any]]:
    return {field: pair for field, pair in different(now, then).items() if field in fields}


def _say_who(environment: str, number: int, found: Reverted) -> None:
    """Add to each kept unit the newest edit that changed it."""
    if not found.kept:
        return
    names = {each.name for each in found.kept[:_EXPLAINED]}
    later = Change.objects.filter(
        revision__environment=environment, revision__number__gt=number, name__in=names
    ).select_related("revision")
    newest: dict[tuple[str, str, str], RevisionRow] = {}
    for change in later.order_by("revision__number").iterator(1_000):
        for field in different(change.before, change.after):
            newest[change.kind, change.name, field] = change.revision
    for index, unit in enumerate(found.kept[:_EXPLAINED]):
        rows = [newest[key] for field in unit.fields if (key := (unit.kind, unit.name, field)) in newest]
        if rows:
            row = max(rows, key=lambda row: row.number)
            found.kept[index] = replace(unit, revision=row.number, by=row.actor, at=row.at, reason=row.reason)


def _check_unmoved(environment: str, found: Reverted, expected: int | None) -> None:
    """Raise ``EditConflict`` when an entity that the revert changes has changed after ``expected``."""
    if expected is None or expected == found.revision:
        return
    things = {(change.kind, change.name) for change in found.changes}
    later = Change.objects.filter(
        revision__environment=environment,
        revision__number__gt=expected,
        name__in={name for _, name in things},
    )
    moved = [
        each
        for each in later.select_related("revision").order_by("-revision__number")
        if (each.kind, each.name) in things
    ]
    if moved or expected > found.revision:
        latest = moved[0].revision if moved else None
        raise EditConflict(
            expected_version=expected,
            current_version=found.revision,
            changed=describe_changes(moved[:5]),
            by=latest.actor if latest else "",
            at=latest.at if latest else None,
        )


def _conflict(number: int, head: int, later: list[KeptUnit]) -> EditConflict:
    return EditConflict(
        expected_version=number,
        current_version=head,
        changed={
            f"{each.kind} {each.name} {each.unit}".strip(): f"changed in revision {each.revision}"
            for each in later[:5]
        },
        by=later[0].by,
        at=later[0].at,
    )


def _audit(revision: Revision, found: Reverted, number: int) -> None:
    if len(found.changes) == 1:
        revision.audit_change("revision.reverted", found.changes[0])
        return
    after = {"revision": revision.number, "reverts": number, "changed": len(found.changes)}
    revision.audit_many("revision.reverted", after)
