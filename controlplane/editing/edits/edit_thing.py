"""Saves what a person typed about one thing: a tier, a tenant, a dependency or the environment.

The page shows the thing as of a revision. Only what was typed changes, so two people can edit different
values of one thing at the same time. They conflict unit by unit, see ``controlplane.policies.merge``.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.audit.actor import Actor
from controlplane.editing.plans import plan_from_document
from controlplane.editing.plans.difference import Difference
from controlplane.editing.plans.plan import PlanErrors
from controlplane.editing.plans.resolving import PREFIX, Wanted, fit, resolve
from controlplane.editing.plans.schema import SECTIONS
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, different, limits_in
from controlplane.policies.history import Changed
from controlplane.policies.merge import units
from controlplane.policies.models import Change, Dependency, Tenant, TenantQuota, Tier
from controlplane.policies.state import State, Thing, read_state
from controlplane.validation import Problems

_SECTION_OF = {kind: section for section, kind in SECTIONS.items()}
_ROWS: dict[str, tuple[type[Any], str]] = {
    "tenant": (Tenant, "key"),
    "tier": (Tier, "name"),
    "dependency": (Dependency, "name"),
}


@dataclass(frozen=True, kw_only=True)
class ThingEdit:
    environment: str
    #: tier, tenant, dependency or environment.
    kind: str
    name: str
    #: The typed fields, in the form of a plan: ``{"priority": 20, "quotas": {"requests": {"limit": 9}}}``.
    typed: Mapping[str, Any]
    #: Names of limits to remove.
    removed: tuple[str, ...] = ()
    #: The revision that the page showed; ``None`` for a new thing.
    base: int | None

    @property
    def document(self) -> dict[str, Any]:
        """Return the typed fields as a plan of one thing."""
        if self.kind == "environment":
            return dict(self.typed)
        return {_SECTION_OF[self.kind]: {self.name: dict(self.typed)}}


@dataclass(frozen=True)
class Theirs:
    """A unit that another person changed after the page was shown."""

    unit: str
    #: Field -> its value when the page was shown, and now.
    fields: dict[str, tuple[Any, Any]]
    #: Whether this edit changes it too.
    conflicts: bool
    revision: int
    by: str
    at: datetime
    reason: str


@dataclass(frozen=True)
class Preview:
    difference: Difference
    #: The thing now, and after the edit; ``None`` where it does not exist.
    before: Fields | None
    after: Fields | None
    theirs: list[Theirs]


class UnitConflict(EditConflict):
    """Another person changed the same units. ``theirs`` has what they changed."""

    def __init__(self, found: Preview) -> None:
        self.theirs = [each for each in found.theirs if each.conflicts]
        latest = self.theirs[0]
        super().__init__(
            expected_version=latest.revision - 1,
            current_version=found.difference.revision,
            changed={field: now for each in self.theirs for field, (_, now) in each.fields.items()},
            by=latest.by,
            at=latest.at,
        )


def preview_edit(edit: ThingEdit) -> Preview:
    """Return what the edit would change. Nothing is written. Raises ``InvalidEdit`` and ``NotFound``."""
    head = environment_of(edit.environment).revision
    if edit.base is not None and edit.base > head:
        text = "The configuration was restored from a backup since this page was shown. Reload the page."
        raise InvalidEdit({"form": [text]})
    plan = plan_from_document(edit.document)
    thing: Thing = (edit.kind, edit.name)
    tenants = {edit.name} if edit.kind == "tenant" else set()
    state = read_state(edit.environment, tenants=tenants)
    present = state.get(thing)
    _check_exists(edit, present)
    later = _changes_since(edit)
    as_of: Fields = (later[0].before or {}) if later else present or {}
    start: State = dict(state)
    if present is not None:
        start[thing] = _without(edit, _with_removed(edit, present, as_of), as_of)
        if edit.removed and not plan.things:
            plan.things[edit.kind, "" if edit.kind == "environment" else edit.name] = {}
    wanted = resolve(edit.environment, plan, start, prune=False)
    changes = [
        Changed(kind, name, state.get((kind, name)), fields)
        for (kind, name), fields in sorted(wanted.items())
        if state.get((kind, name)) != fields
    ]
    after = wanted.get(thing, present)
    theirs = _theirs(later, as_of, present or {}, after or {})
    return Preview(Difference(edit.environment, head, changes), present, after, theirs)


def check_edit(edit: ThingEdit, *, replace: Collection[str] = (), seen: int | None = None) -> None:
    """Raise as ``save_edit`` does, and write nothing: for an edit that is made later."""
    _check_conflicts(preview_edit(edit), replace, seen)


def save_edit(
    edit: ThingEdit,
    *,
    reason: str,
    actor: Actor,
    replace: Collection[str] = (),
    seen: int | None = None,
    action: str = "",
) -> int:
    """Save the edit as one revision and return it. If nothing changes, nothing is written.

    Raises ``UnitConflict`` when another person changed a unit that this edit changes too, unless the unit
    is in ``replace`` and has not changed after revision ``seen``, at which the person decided to replace
    it; and ``InvalidEdit`` when a value is wrong.
    """
    problems = Problems()
    problems.reason(reason)
    problems.settle()
    found = preview_edit(edit)
    _check_conflicts(found, replace, seen)
    if not found.difference:
        return found.difference.revision
    with revise(environment=edit.environment, actor=actor, reason=reason) as revision:
        if found.difference.revision != revision.number - 1:
            # Another edit was faster. Nothing else can change while this revision is being made.
            found = preview_edit(edit)
            _check_conflicts(found, replace, seen)
        _write(revision, edit, found, action or _action(edit, found))
    return revision.number


def remove_thing(
    *, environment: str, kind: str, name: str, reason: str, actor: Actor, base: int | None = None
) -> int:
    """Remove a tier, a tenant or a dependency that nothing refers to. Return the revision.

    Raises ``EditConflict`` if another person changed it after revision ``base``.
    """
    problems = Problems()
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        state = read_state(environment, tenants={name} if kind == "tenant" else ())
        present = state.get((kind, name))
        if present is None:
            raise NotFound(kind, name)
        if base is not None:
            _check_unmoved(environment, kind, name, base, revision.number - 1)
        wanted: Wanted = {(kind, name): None}
        try:
            fit(environment, wanted, state)
        except PlanErrors as errors:
            raise InvalidEdit({"name": [error.message for error in errors.found[:5]]}) from errors
        if kind == "dependency":
            _check_unused(environment, name)
        version = _version(environment, kind, name)
        write_changes(revision, [Changed(kind, name, present, None)])
        revision.audit(
            f"{kind}.removed",
            target_kind=kind,
            target_name=name,
            before={**present, "version": version},
            after=None,
        )
    return revision.number


def thing_as_of(environment: str, number: int, kind: str, name: str) -> Fields | None:
    """Return one thing as it was at a revision; ``None`` if it did not exist then."""
    later = Change.objects.filter(
        revision__environment=environment, revision__number__gt=number, kind=kind, name=name
    )
    change = later.order_by("revision__number").first()
    if change is not None:
        before: Fields | None = change.before
        return before
    return read_state(environment, tenants={name} if kind == "tenant" else ()).get((kind, name))


def _check_unmoved(environment: str, kind: str, name: str, base: int, head: int) -> None:
    rows = Change.objects.filter(
        revision__environment=environment, revision__number__gt=base, kind=kind, name=name
    )
    latest = rows.select_related("revision").order_by("-revision__number").first()
    if latest is None and base <= head:
        return
    fields = different(latest.before, latest.after) if latest else {}
    raise EditConflict(
        expected_version=base,
        current_version=head,
        changed={field: now for field, (_, now) in fields.items()},
        by=latest.revision.actor if latest else "",
        at=latest.revision.at if latest else None,
    )


def _check_unused(environment: str, dependency: str) -> None:
    """Raise ``InvalidEdit`` if a quota of a tenant counts calls to it. Quotas of tiers are in the state."""
    rows = TenantQuota.objects.filter(
        tenant__environment=environment, tenant__deleted=False, dependency=dependency
    )
    if row := rows.select_related("tenant").first():
        text = f"Quota {row.name} of tenant {row.tenant.key} still counts its calls."
        raise InvalidEdit({"name": [text]})


def _check_exists(edit: ThingEdit, present: Fields | None) -> None:
    if edit.base is None and present is not None:
        raise InvalidEdit({"name": [f"A {edit.kind} with this name already exists."]})
    if edit.base is not None and present is None:
        raise NotFound(edit.kind, edit.name)


def _changes_since(edit: ThingEdit) -> list[Change]:
    """Return what changed the thing after the page was shown, oldest first."""
    if edit.base is None:
        return []
    rows = Change.objects.filter(
        revision__environment=edit.environment,
        revision__number__gt=edit.base,
        kind=edit.kind,
        name=edit.name,
    )
    return list(rows.select_related("revision").order_by("revision__number"))


def _with_removed(edit: ThingEdit, present: Fields, as_of: Fields) -> Fields:
    """Return the thing with limits that were typed in, but that another person has removed meanwhile.

    So the typed values are those of a limit, and the removal is a conflict.
    """
    prefix = PREFIX[edit.kind]
    typed, known = edit.typed.get(prefix, {}), limits_in(prefix, present)
    lost = {name: columns for name, columns in limits_in(prefix, as_of).items() if name in typed}
    return present | {
        f"{prefix}.{name}.{column}": value
        for name, columns in lost.items()
        if name not in known
        for column, value in columns.items()
    }


def _without(edit: ThingEdit, present: Fields, as_of: Fields) -> Fields:
    prefix = PREFIX[edit.kind]
    unknown = set(edit.removed) - limits_in(prefix, present | as_of).keys()
    if unknown:
        raise InvalidEdit({"removed": [f"There is no limit {min(unknown)!r}."]})
    gone = {f"{prefix}.{name}" for name in edit.removed}
    return {field: value for field, value in present.items() if field.rpartition(".")[0] not in gone}


def _theirs(later: list[Change], as_of: Fields, now: Fields, after: Fields) -> list[Theirs]:
    """Return what other people changed since the page was shown, newest first."""
    last = {}
    for change in later:
        for field in different(change.before, change.after):
            last[field] = change.revision
    mine = set(different(now, after))
    found = []
    for unit, fields in units((as_of, now, after)).items():
        moved = {field: pair for field, pair in different(as_of, now).items() if field in fields}
        rows = [last[field] for field in moved if field in last]
        if rows:
            row = max(rows, key=lambda row: row.number)
            conflicts = bool(mine.intersection(fields))
            found.append(Theirs(unit, moved, conflicts, row.number, row.actor, row.at, row.reason))
    return sorted(found, key=lambda each: -each.revision)


def _check_conflicts(found: Preview, replace: Collection[str], seen: int | None) -> None:
    for each in found.theirs:
        decided = each.unit in replace and (seen is None or each.revision <= seen)
        if each.conflicts and not decided:
            raise UnitConflict(found)


def _write(revision: Revision, edit: ThingEdit, found: Preview, action: str) -> None:
    version = _version_of(edit)
    write_changes(revision, found.difference.changes)
    revision.audit(
        action,
        target_kind=edit.kind,
        target_name=edit.name,
        before=None if found.before is None else {**found.before, "version": version},
        after=None if found.after is None else {**found.after, "version": _version_of(edit)},
    )


def _version_of(edit: ThingEdit) -> int:
    return _version(edit.environment, edit.kind, edit.name)


def _action(edit: ThingEdit, found: Preview) -> str:
    return f"{edit.kind}.{'created' if found.before is None else 'set'}"


def _version(environment: str, kind: str, name: str) -> int:
    if kind not in _ROWS:
        return 0
    model, column = _ROWS[kind]
    rows = model._default_manager.filter(**{"environment_id": environment, column: name})
    return int(rows.values_list("version", flat=True).first() or 0)
