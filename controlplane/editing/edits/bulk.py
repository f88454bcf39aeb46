"""One change of every tenant that a filter matches, as one revision."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

from controlplane.audit.actor import Actor
from controlplane.editing.plans.difference import Difference
from controlplane.editing.plans.plan import MAX_ROWS, Plan, PlanErrors
from controlplane.editing.plans.reading import plan_from_document
from controlplane.editing.plans.resolving import Wanted, resolve
from controlplane.editing.revise import revise
from controlplane.editing.rows.limit_checks import check_limit_columns, check_together
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import InvalidEdit
from controlplane.policies.conflicts import check_revision
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, limits_in, replace_limit
from controlplane.policies.history import Changed, changes_between
from controlplane.policies.limits import full_columns, own_columns
from controlplane.policies.merge import RATE
from controlplane.policies.models import Tenant
from controlplane.policies.state import State, names_of, read_state
from controlplane.validation import Problems, check_reason
from fuseboard.contract.limit_fields import NUMBERS, QUOTAS
from fuseboard.contract.words import Algorithm

#: A scheduled change keeps the values of each tenant, and pages read them.
MAX_SCHEDULED = 1_000


@dataclass(frozen=True, kw_only=True)
class TenantFilter:
    """Matches tenants that meet every given condition. An empty filter matches none, unless ``everybody``."""

    tier: str = ""
    prefix: str = ""
    #: Whether they override a quota of their tier: any, or the one named in ``quota``.
    has_quota: bool | None = None
    quota: str = ""
    suspended: bool | None = None
    #: The tenant they belong to.
    parent: str = ""
    #: These tenants, by their ids; empty for any.
    keys: tuple[str, ...] = ()
    everybody: bool = False

    def rows(self, environment: str) -> QuerySet[Tenant]:
        rows = Tenant.objects.filter(environment_id=environment, deleted=False)
        if self.tier:
            rows = rows.filter(tier__name=self.tier)
        if self.prefix:
            rows = rows.filter(key__startswith=self.prefix)
        if self.suspended is not None:
            rows = rows.filter(suspended=self.suspended)
        if self.parent:
            rows = rows.filter(parent=self.parent)
        if self.keys:
            rows = rows.filter(key__in=self.keys)
        if self.has_quota is not None or self.quota:
            own = rows.filter(quotas__name=self.quota) if self.quota else rows.filter(quotas__isnull=False)
            keys = own.values("pk")
            rows = rows.exclude(pk__in=keys) if self.has_quota is False else rows.filter(pk__in=keys)
        return rows.order_by("key")

    @property
    def has_conditions(self) -> bool:
        words = self.tier or self.prefix or self.quota or self.parent or self.keys
        return bool(words or self.everybody) or self.has_quota is not None or self.suspended is not None


@dataclass(frozen=True, kw_only=True)
class TenantChange:
    """The new values of each tenant. A value that is not given stays, also one that the tier decides now."""

    tier: str | None = None
    suspended: bool | None = None
    #: The tenant they belong to afterwards; empty for none.
    parent: str | None = None
    #: Name of a quota -> columns of the tenant's own quota, as in a plan.
    quotas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Own quotas to remove, so that the tier's apply again.
    remove_quotas: tuple[str, ...] = ()
    #: Name of a quota -> percent of the present limit and burst, their own or the tier's. For a temporary
    #: quota, also of those that apply afterwards.
    scale_percent: Mapping[str, int] = field(default_factory=dict)


def bulk_edit(
    *,
    environment: str,
    filter: TenantFilter,  # noqa: A002 - the word every caller would use
    change: TenantChange,
    reason: str,
    actor: Actor,
    expected_revision: int | None,
) -> int:
    """Change every tenant that the filter matches, or none. Return the revision.

    If nothing changes, nothing is written and the present revision is returned. Raises
    ``InvalidEdit``, and ``EditConflict`` when the configuration was changed after
    ``expected_revision``, because the filter may match other tenants now.
    """
    check_reason(reason)
    found = preview_bulk_edit(environment=environment, filter=filter, change=change)
    check_revision(environment=environment, expected=expected_revision)
    if not found:
        return found.revision
    with revise(
        environment=environment, actor=actor, reason=reason, conflicts_with_any_change=True
    ) as revision:
        check_revision(environment=environment, expected=expected_revision, making=revision.number)
        if found.revision != revision.number - 1:
            # Another edit was faster. Nothing else can change while this revision is being made.
            found = preview_bulk_edit(environment=environment, filter=filter, change=change)
        given = _given_values("filter", filter) | _given_values("change", change)
        revision.audit_many("tenants.changed", {"tenants": len(found.changes), **given})
        write_changes(revision, found.changes)
    return revision.number


def scheduled_bulk_edit(
    *,
    environment: str,
    filter: TenantFilter,  # noqa: A002
    change: TenantChange,
    expected_revision: int | None,
) -> dict[str, Any]:
    """Return the edit as a plan for later: each tenant that matches now, with its new values.

    Nothing is written. Raises as ``bulk_edit`` does, and for what a plan cannot express.
    """
    if change.remove_quotas:
        raise InvalidEdit({"starts": ["A removal cannot be scheduled. Save it now: leave this empty."]})
    found = preview_bulk_edit(environment=environment, filter=filter, change=change)
    check_revision(environment=environment, expected=expected_revision)
    if not found:
        raise InvalidEdit({"change": ["No matching tenant would change."]})
    if len(found.changes) > MAX_SCHEDULED:
        text = (
            f"At most {MAX_SCHEDULED:,} tenants, not {len(found.changes):,}: add conditions, or save it now."
        )
        raise InvalidEdit({"starts": [text]})
    return {"tenants": {each.name: _planned(each) for each in found.changes}}


def _planned(change: Changed) -> Fields:
    """Return the new values of a tenant, as a plan. A rate is complete: it may change until then."""
    before, after = change.before or {}, change.after or {}
    planned: Fields = {
        name: after.get(name, "")
        for name in ("tier", "suspended", "parent")
        if after.get(name, "") != before.get(name, "")
    }
    had = limits_in("quotas", before)
    for name, columns in limits_in("quotas", after).items():
        was = had.get(name, {})
        if columns == was:
            continue
        if was.get("expires_at"):
            text = f"Quota {name} of {change.name} is temporary: save the change now, or after it has ended."
            raise InvalidEdit({"starts": [text]})
        keep = () if columns.get("template") else RATE
        planned.setdefault("quotas", {})[name] = {"expires_at": ""} | {
            column: value
            for column, value in columns.items()
            if column != "own" and (column in keep or value != was.get(column))
        }
    return planned


def preview_bulk_edit(
    *,
    environment: str,
    filter: TenantFilter,  # noqa: A002
    change: TenantChange,
) -> Difference:
    """Return how each tenant would change. Nothing is written."""
    given = _given(filter, change)
    head = environment_of(environment).revision
    keys = list(filter.rows(environment).values_list("key", flat=True)[: MAX_ROWS + 1])
    if len(keys) > MAX_ROWS:
        raise InvalidEdit({"filter": [f"It matches more than {MAX_ROWS:,} tenants: add conditions."]})
    state = read_state(environment, tenants=keys)
    # ``keys`` may be slightly older than the rest.
    chosen = names_of(state, "tenant") & set(keys)
    now = dict(state)
    for name in change.remove_quotas:
        for key in chosen:
            state["tenant", key] = replace_limit("quotas", name, state["tenant", key], None)
    if change.scale_percent:
        state |= {("tenant", key): _with_scaled_ends(state["tenant", key], change) for key in chosen}
    plan = Plan(sections={"tenant"})
    for key in chosen:
        fields = {**_kept(state, key, given, change), **given, **_scaled(state, key, change)}
        plan.things["tenant", key] = fields
    try:
        wanted = resolve(environment, plan, state, prune=False)
    except PlanErrors as errors:
        said = [f"{error.where}: {error.message}" for error in errors.found[:5]]
        raise InvalidEdit({"change": said}) from errors
    if change.scale_percent:
        _check_scaled(wanted, change)
    return Difference(environment, head, changes_between(now, wanted))


def _given(filter: TenantFilter, change: TenantChange) -> Fields:  # noqa: A002
    """Return the flat fields that every tenant gets."""
    problems = Problems()
    if not filter.has_conditions:
        problems.add("filter", "Enter at least one condition.")
    if not any(value not in (None, {}, ()) for value in vars(change).values()):
        problems.add("change", "Enter at least one change.")
    for name in change.remove_quotas:
        problems.slug("remove_quotas", name)
    for name, percent in change.scale_percent.items():
        problems.slug("scale_percent", name)
        problems.whole("scale_percent", percent, 1, 10_000)
    problems.settle()
    own = {name: vars(change)[name] for name in ("tier", "suspended", "parent")}
    own = {name: value for name, value in own.items() if value is not None}
    if change.quotas:
        own["quotas"] = {name: dict(columns) for name, columns in change.quotas.items()}
    read = plan_from_document({"tenants": {"each": own}})
    return read.things["tenant", "each"]


def _given_values(prefix: str, given: TenantFilter | TenantChange) -> Fields:
    """Return the given values, for the audit."""
    usual = vars(type(given)())
    return {f"{prefix}.{name}": value for name, value in vars(given).items() if value != usual[name]}


def _limits(state: State, key: str, change: TenantChange) -> tuple[dict[str, Fields], dict[str, Fields]]:
    """Return the tenant's own quotas, and those of its tier after the edit."""
    fields = state["tenant", key]
    tier = limits_in("quotas", state.get(("tier", change.tier or fields["tier"]), {}))
    return limits_in("quotas", fields), tier


def _kept(state: State, key: str, given: Fields, change: TenantChange) -> Fields:
    """Return the numbers of the tier that stay when the tenant gets its own quota: window and burst."""
    own, tier = _limits(state, key, change)
    kept: Fields = {}
    for name, columns in limits_in("quotas", given).items():
        if name in own or name not in tier or columns.get("template"):
            continue
        algorithm = columns.get("algorithm", tier[name]["algorithm"])
        numbers = [each for each in NUMBERS if each != "burst" or algorithm == Algorithm.TOKEN_BUCKET]
        kept |= {f"quotas.{name}.{column}": tier[name][column] for column in numbers}
    return kept


def _scaled(state: State, key: str, change: TenantChange) -> Fields:
    if not change.scale_percent:
        return {}
    own, tier = _limits(state, key, change)
    limits = {**tier, **own}
    scaled: Fields = {}
    for name, percent in change.scale_percent.items():
        if name in limits:
            columns = limits[name]
            given = _times(columns, percent)
            if name not in own:
                given = {column: columns[column] for column in ("window_s", "burst")} | given
            scaled |= {f"quotas.{name}.{column}": value for column, value in given.items()}
    return scaled


def _times(columns: Fields, percent: int) -> Fields:
    scaled = {"limit": -(-columns["limit"] * percent // 100)}
    if columns["burst"] > 1:
        scaled["burst"] = max(1, -(-columns["burst"] * percent // 100))
    return scaled


def _with_scaled_ends(fields: Fields, change: TenantChange) -> Fields:
    """Scale what applies after a temporary quota too: otherwise the old numbers return with its end."""
    found = dict(fields)
    for name, percent in change.scale_percent.items():
        field = f"quotas.{name}.returns_to"
        if lasting := fields.get(field):
            scaled = _times(lasting, percent)
            if lasting.get("template"):
                scaled["own"] = own_columns([*lasting["own"], *scaled])
            found[field] = lasting | scaled
    return found


def _check_scaled(wanted: Wanted, change: TenantChange) -> None:
    """Check the computed numbers, which nobody typed, as a plan checks typed ones."""
    said: list[str] = []
    for (_, key), fields in sorted(wanted.items()):
        quotas = limits_in("quotas", fields or {})
        for name in change.scale_percent.keys() & quotas.keys():
            for columns in (quotas[name], quotas[name].get("returns_to")):
                problems = Problems()
                if columns:
                    check_limit_columns(
                        problems, {column: columns[column] for column in NUMBERS}, whose=QUOTAS
                    )
                    check_together(problems, full_columns(columns), subject=False)
                said += [
                    f"tenants.{key}.quotas.{name}.{column}: {' '.join(texts)}"
                    for column, texts in problems.errors.items()
                ]
    if said:
        more = [f"And {len(said) - 5:,} more."] if len(said) > 5 else []
        raise InvalidEdit({"change": said[:5] + more})
