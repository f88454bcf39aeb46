"""Edits one entity: a tier, a tenant, a dependency or the environment. Pages and the API save through this.

A page shows the entity as of a revision. Only what was typed changes, so two people can edit different
values of one entity at the same time. They conflict unit by unit, see ``controlplane.policies.merge``.

A call of the API names the version of the row that it has read. It conflicts with any later change.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from dataclasses import field as with_default
from dataclasses import replace as replace_fields
from datetime import datetime
from typing import Any

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.edits.shown import moved_quotas
from controlplane.editing.plans import plan_from_document
from controlplane.editing.plans.difference import Difference
from controlplane.editing.plans.plan import PlanErrors
from controlplane.editing.plans.resolving import PREFIX, Wanted, fit, resolve
from controlplane.editing.plans.schema import SECTIONS
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import EditConflict, EditError, InvalidEdit, NotFound
from controlplane.policies.conflicts import check_section, check_version
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, different, limits_in
from controlplane.policies.history import Changed, changes_of
from controlplane.policies.merge import RATE, units
from controlplane.policies.models import VERSIONED, Change, TenantQuota
from controlplane.policies.state import EntityKey, State, read_entity, read_referable, read_state
from controlplane.validation import Problems, check_reason

_SECTION_OF = {kind: section for section, kind in SECTIONS.items()}
#: The base of an edit that was not made on a page.
NEWEST = -1


@dataclass(frozen=True)
class EntityEdit:
    environment: str
    #: tier, tenant, dependency, model, account, budget, descriptors or environment.
    kind: str
    name: str
    _: KW_ONLY
    #: The typed fields, in the form of a plan: ``{"priority": 20, "quotas": {"requests": {"limit": 9}}}``.
    typed: Mapping[str, Any] = with_default(default_factory=dict)
    #: Names of limits to remove.
    removed: tuple[str, ...] = ()
    #: The revision that the page showed; ``None`` for a new entity. An edit of the ``NEWEST`` state becomes a
    #: revision also if it changes nothing.
    base: int | None = NEWEST
    #: The version of the row that the caller has read; for an environment the revision, with which only later
    #: changes of the same section conflict. ``None`` skips the check, for commands and seeds.
    version: int | None = None
    #: Whether a call adds the entity. A page gives no ``base`` instead.
    creates: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """Return the typed fields as a plan of one entity."""
        if self.kind == "environment":
            return dict(self.typed)
        return {_SECTION_OF[self.kind]: {self.name: dict(self.typed)}}

    @property
    def is_new(self) -> bool:
        return self.creates or self.base is None

    @property
    def shown_at(self) -> int | None:
        """The revision at which a page showed the entity; ``None`` if no page did."""
        return None if self.base == NEWEST else self.base


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
    #: The entity now, and after the edit; ``None`` where it does not exist.
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


def preview_edit(edit: EntityEdit, *, head: int | None = None) -> Preview:
    """Return what the edit would change. Nothing is written. Raises ``InvalidEdit`` and ``NotFound``.

    ``head`` is the newest revision; while one is being made, the one before.
    """
    head = environment_of(edit.environment).revision if head is None else head
    if edit.base is not None and edit.base > head:
        text = "The configuration was restored from a backup since this page was shown. Reload the page."
        raise InvalidEdit({"form": [text]})
    plan = plan_from_document(edit.document)
    thing: EntityKey = (edit.kind, edit.name)
    present = read_entity(edit.environment, *thing)
    _check_exists(edit, present)
    _check_version(edit, present, head)
    later = [] if edit.shown_at is None else changes_of(edit.environment, *thing, after=edit.shown_at)
    as_of: Fields = (later[0].before or {}) if later else present or {}
    tiers = {fields.get("tier") for fields in (present or {}, as_of, edit.typed)}
    named = {tier for tier in tiers if isinstance(tier, str)}
    state = read_referable(edit.environment, tiers=named, kind=edit.kind)
    planned = (edit.kind, "" if edit.kind == "environment" else edit.name)
    if present is not None:
        shown = _as_shown(plan.things.get(planned, {}), present, as_of) if later else present
        state[thing] = _without(edit, shown, as_of)
        if edit.removed and not plan.things:
            plan.things[planned] = {}
    after = resolve(edit.environment, plan, state, prune=False, parents=edit.base != NEWEST).get(
        thing, present
    )
    is_recorded = after != present or edit.base == NEWEST
    changes = [Changed(*thing, present, after)] if is_recorded else []
    _check_ends(edit, after or {}, present or {})
    theirs = _theirs(later, as_of, present or {}, after or {}) if later else []
    theirs += _theirs_of_the_tier(edit, as_of, present or {}, after or {}, state)
    theirs.sort(key=lambda each: -each.revision)
    return Preview(Difference(edit.environment, head, changes), present, after, theirs)


def check_scheduled(
    edit: EntityEdit, *, replace: Collection[str] = (), seen: int | None = None
) -> dict[str, Any]:
    """Return the edit as a plan for later. Raises as ``save_edit`` does, and writes nothing.

    Where a number of a rate was typed, the plan has the whole rate: it may change until then.
    """
    found = preview_edit(edit)
    _check_conflicts(found, replace, seen)
    prefix = PREFIX[edit.kind]
    limits = dict(edit.typed.get(prefix, {}))
    for name, columns in limits_in(prefix, found.after or {}).items():
        if not RATE.isdisjoint(limits.get(name, ())) and not columns.get("template"):
            rate = {column: columns[column] for column in RATE - {"returns_to"} if column in columns}
            lasting = {"expires_at": ""} if edit.kind == "tenant" else {}
            limits[name] = {**lasting, **rate, **limits[name]}
    return replace_fields(edit, typed={**edit.typed, **({prefix: limits} if limits else {})}).document


def save_edit(
    edit: EntityEdit,
    *,
    reason: str,
    actor: Actor,
    replace: Collection[str] = (),
    seen: int | None = None,
    action: str = "",
    audited: Callable[[Fields], Fields] = dict,
) -> int:
    """Save the edit as one revision and return it. If nothing changes on a page, nothing is written.

    ``action`` names it in the audit, and ``audited`` picks the fields that the audit stores.

    Raises ``EditConflict`` when the row has another version; ``UnitConflict`` when another person changed a
    unit that this edit changes too, unless the unit is in ``replace`` and has not changed after revision
    ``seen``, at which the person decided to replace it; and ``InvalidEdit`` when a value is wrong.
    """
    check_reason(reason)
    found = None
    if edit.base != NEWEST:
        found = preview_edit(edit)
        _check_conflicts(found, replace, seen)
        if not found.difference:
            return found.difference.revision
    with revise(environment=edit.environment, actor=actor, reason=reason) as revision:
        if found is None or found.difference.revision != revision.number - 1:
            # Another edit may have been faster. Nothing else can change while this revision is being made.
            found = preview_edit(edit, head=revision.number - 1)
            _check_conflicts(found, replace, seen)
        _write(revision, edit, found, action or _action(edit, found), audited)
    return revision.number


def save_call(
    edit: EntityEdit,
    *,
    reason: str,
    actor: Actor,
    action: str = "",
    audited: Callable[[Fields], Fields] = dict,
    refers: Mapping[str, EditError] | None = None,
) -> int:
    """Save an edit of the ``NEWEST`` state. ``refers`` is as in ``problems_by_field``."""
    with problems_by_field(edit, refers):
        return save_edit(edit, reason=reason, actor=actor, action=action, audited=audited)


def put_edit(
    environment: str, kind: str, name: str, version: int | None, given: Mapping[str, Any]
) -> EntityEdit:
    """The edit that creates an entity, on version 0, or changes one. What is ``None`` stays.

    Without a version, for commands and seeds, the entity is created if it does not exist.
    """
    typed = {field: value for field, value in given.items() if value is not None}
    creates = version == 0 or (version is None and read_entity(environment, kind, name) is None)
    return EntityEdit(
        environment, kind, name, typed=typed, version=None if creates else version, creates=creates
    )


@contextmanager
def problems_by_field(edit: EntityEdit, refers: Mapping[str, EditError] | None = None) -> Iterator[None]:
    """Name problems by their field, not by a place in a plan.

    ``refers`` has the fields that name another entity, and what is raised if it does not exist.
    """
    try:
        yield
    except PlanErrors as errors:
        place = f"{_SECTION_OF[edit.kind]}.{edit.name}" if edit.kind in _SECTION_OF else ""
        problems = Problems()
        for error in errors.found:
            field = edit.kind if error.where == place else error.where.removeprefix(f"{place}.")
            in_group = field.partition(".")[0] in (PREFIX[edit.kind], "breaker", "tuning")
            problems.add(field.rpartition(".")[2] if in_group else field, error.message)
        for field, missing in (refers or {}).items():
            if field in problems.errors:
                raise missing from errors
        raise InvalidEdit(problems.errors) from errors


def section_of(name: str) -> Callable[[Fields], Fields]:
    """Return what picks the fields of one section of an environment, for the audit."""
    return lambda fields: {field: value for field, value in fields.items() if field.split(".")[0] == name}


def remove_entity(
    *,
    environment: str,
    kind: str,
    name: str,
    reason: str,
    actor: Actor,
    base: int | None = None,
    version: int | None = None,
    kept: Collection[str] = (),
    audited: Callable[[Fields], Fields] = dict,
) -> int:
    """Remove a tier, a tenant, a dependency or a model that nothing refers to. Return the revision.

    Raises ``EditConflict`` if another person changed it after revision ``base``, or if its row has another
    ``version``. ``audited`` picks the fields that the audit stores, and the audit shows those that are
    ``kept`` in the row of a removed tenant.
    """
    check_reason(reason)
    edit = EntityEdit(environment, kind, name, version=version)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        state = read_state(environment, tenants={name} if kind == "tenant" else ())
        present = state.get((kind, name))
        if present is None:
            raise NotFound(_words(kind), name)
        _check_version(edit, present, revision.number - 1)
        if base is not None:
            _check_unmoved(environment, kind, name, base, revision.number - 1)
        wanted: Wanted = {(kind, name): None}
        try:
            fit(environment, wanted, state)
        except PlanErrors as errors:
            raise InvalidEdit({"name": [error.message for error in errors.found[:5]]}) from errors
        if kind == "dependency":
            _check_unused(environment, name)
        before = audited({**present, "version": _version_of(edit)})
        write_changes(revision, [Changed(kind, name, present, None)])
        left = {field: present[field] for field in kept if field in present}
        revision.audit(
            f"{kind}.removed",
            target_kind=kind,
            target_name=name,
            before=before,
            after={**left, "version": _version_of(edit)} if left else None,
        )
    return revision.number


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


def _check_exists(edit: EntityEdit, present: Fields | None) -> None:
    if edit.is_new and present is not None:
        named = "id" if edit.creates and edit.kind == "tenant" else "name"
        text = f"A {_words(edit.kind)} with this {named} already exists."
        raise InvalidEdit({edit.kind if edit.creates else "name": [text]})
    if not edit.is_new and present is None:
        raise NotFound(_words(edit.kind), edit.name)


def check_version_of(edit: EntityEdit) -> None:
    """Raise ``EditConflict`` if another person changed the entity after the version of the edit.

    A form asks this before it compares what was typed with the present values.
    """
    present = read_entity(edit.environment, edit.kind, edit.name)
    _check_version(edit, present, environment_of(edit.environment).revision)


def _check_version(edit: EntityEdit, present: Fields | None, head: int) -> None:
    if present is None or edit.version is None:
        return
    if edit.kind == "environment":
        section = next(iter(edit.typed))
        check_section(edit.environment, section, expected=edit.version, head=head, now=present)
    else:
        check_version(
            environment=edit.environment,
            target_kind=edit.kind,
            target_name=edit.name,
            expected=edit.version,
            now={**present, "version": _version_of(edit)},
        )


def _as_shown(typed: Fields, present: Fields, as_of: Fields) -> Fields:
    """Return the entity now, but each unit that was typed in as the page showed it.

    So a typed limit never joins the window of another person. If they changed the unit, it conflicts.
    """
    shown = dict(present)
    for fields in units((as_of, present, present | typed)).values():
        if not typed.keys().isdisjoint(fields):
            for field in fields:
                shown.pop(field, None)
                if field in as_of:
                    shown[field] = as_of[field]
    return shown


def _check_ends(edit: EntityEdit, after: Fields, now: Fields) -> None:
    """Refuse to write back a temporary quota that has ended since the page was shown."""
    prefix, wrong = PREFIX[edit.kind], {}
    for name in edit.typed.get(prefix, {}):
        field = f"{prefix}.{name}.expires_at"
        ends = after.get(field)
        if ends and ends != now.get(field) and datetime.fromisoformat(ends) <= timezone.now():
            text = "It has ended since this page was shown: enter a later time, or nothing for no end."
            wrong[".".join((_SECTION_OF[edit.kind], edit.name, field))] = [text]
    if wrong:
        raise InvalidEdit(wrong)


def _without(edit: EntityEdit, present: Fields, as_of: Fields) -> Fields:
    prefix = PREFIX[edit.kind]
    unknown = set(edit.removed) - limits_in(prefix, present | as_of).keys()
    if unknown:
        if edit.base == NEWEST:
            raise NotFound("price" if edit.kind == "model" else "quota", min(unknown))
        raise InvalidEdit({"removed": [f"There is no limit {min(unknown)!r}."]})
    gone = {f"{prefix}.{name}" for name in edit.removed}
    return {field: value for field, value in present.items() if field.rpartition(".")[0] not in gone}


def _theirs(later: list[Change], as_of: Fields, now: Fields, after: Fields) -> list[Theirs]:
    """Return what other people changed since the page was shown."""
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
    return found


def _theirs_of_the_tier(
    edit: EntityEdit, as_of: Fields, now: Fields, after: Fields, state: State
) -> list[Theirs]:
    """Return what changed in quotas of its tier that become quotas of the tenant with this edit."""
    # A tenant that is newer than the page was shown without a tier.
    if edit.kind != "tenant" or edit.shown_at is None or not as_of:
        return []
    had, has, gets = (limits_in("quotas", fields).keys() for fields in (as_of, now, after))
    tiers = (as_of["tier"], as_of["tier"] if "tier" in edit.typed else now["tier"])
    moved = moved_quotas(edit.environment, edit.shown_at, edit.name, tiers, gets - had - has, state)
    return [
        Theirs(f"quotas.{each.name}", each.fields, True, row.number, row.actor, row.at, row.reason)
        for each in moved
        for row in [each.revision]
    ]


def _check_conflicts(found: Preview, replace: Collection[str], seen: int | None) -> None:
    for each in found.theirs:
        decided = each.unit in replace and (seen is None or each.revision <= seen)
        if each.conflicts and not decided:
            raise UnitConflict(found)


def _write(
    revision: Revision, edit: EntityEdit, found: Preview, action: str, audited: Callable[[Fields], Fields]
) -> None:
    version = _version_of(edit)
    write_changes(revision, found.difference.changes)
    revision.audit(
        action,
        target_kind=edit.kind,
        target_name=edit.name,
        before=None if found.before is None else audited({**found.before, "version": version}),
        after=None if found.after is None else audited({**found.after, "version": _version_of(edit)}),
    )


def _version_of(edit: EntityEdit) -> int:
    if edit.kind not in VERSIONED:
        return 0
    model, column = VERSIONED[edit.kind]
    rows = model._default_manager.filter(**{"environment_id": edit.environment, column: edit.name})
    return int(rows.values_list("version", flat=True).first() or 0)


def _words(kind: str) -> str:
    """One thing of this kind, in words."""
    return "domain" if kind == "descriptors" else kind


def _action(edit: EntityEdit, found: Preview) -> str:
    return f"{edit.kind}.{'created' if found.before is None else 'set'}"
