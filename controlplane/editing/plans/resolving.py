"""Merges a plan into the present state: values that the plan leaves out stay, or are the defaults."""

import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from django.utils import timezone

from controlplane.editing.plans.account_plans import planned_account, planned_budget, still_used, tenant_names
from controlplane.editing.plans.plan import Errors, Plan
from controlplane.editing.rows.limit_checks import check_together, wrong_end
from controlplane.editing.rows.tenant_parents import wrong_parents
from controlplane.policies import descriptors
from controlplane.policies.fields import Fields, breaker_fields, limits_in
from controlplane.policies.limits import (
    ALONE,
    OPTIONAL,
    SUBJECT_DEFAULTS,
    VALUES,
    VENDOR_DEFAULTS,
    columns_of_edit,
    followed,
    full_columns,
    own_columns,
    plain_columns,
)
from controlplane.policies.models import (
    OPEN_TOO_SHORT,
    OPTIONAL_COLUMNS,
    TIME_PRESETS,
    WINDOW_TOO_FEW,
    Dependency,
    Kind,
    breaker_preset,
)
from controlplane.policies.protection import (
    CALL,
    POD,
    PROTECTION,
    Shape,
    changed,
    flat_protection,
    protection_in,
    without_protection,
)
from controlplane.policies.runbook_texts import is_runbook
from controlplane.policies.state import EntityKey, State, names_of
from controlplane.spending.budget_fields import wrong_together
from controlplane.spending.fields import changed_price
from controlplane.spending.model_checks import wrong_names, wrong_prices
from controlplane.validation import PLAIN_KEY, Problems, is_plain_key
from fuseboard.contract.words import Algorithm

#: Entity -> its fields; ``None`` when it is removed.
Wanted = dict[EntityKey, Fields | None]

PREFIX = {
    "tenant": "quotas",
    "tier": "quotas",
    "dependency": "vendor_limits",
    "environment": "subject_limits",
    "model": "prices",
    "account": "",
    "budget": "",
    "descriptors": "",
}
_PLURALS = {"environment": "", "dependency": "dependencies", "descriptors": "descriptors"}
#: Fields of a tenant besides its quotas.
_OWN = ("tier", "title", "suspended", "parent")
_IN_ORDER = (
    *("template", "tier", "dependency", "environment", "model", "account", "tenant", "budget"),
    "descriptors",
)
_PRUNED = ("template", "tier", "dependency", "model", "account", "budget", "descriptors", "tenant")


def resolve(
    environment: str,
    plan: Plan,
    state: State,
    *,
    prune: bool,
    at: datetime | None = None,
    parents: bool = True,
) -> Wanted:
    """Return what becomes of each entity; ``at`` is when, by default now.

    Raises ``PlanErrors`` for contradictions and unknown names. Without ``parents``, only the write checks
    the parents of tenants.
    """
    resolving = _Resolving(environment, plan, state, prune, at)
    resolving.checks_parents = parents
    return resolving.everything()


def fit(environment: str, wanted: Wanted, state: State) -> Wanted:
    """Check things that were put together from earlier states, and return them as rows store them.

    ``state`` must contain every tenant if a tier, dependency or template is removed. Raises
    ``PlanErrors`` if they contradict themselves or refer to things that do not exist.
    """
    kept = {thing: fields for thing, fields in wanted.items() if fields is not None}
    removed: Wanted = {thing: None for thing in wanted if thing not in kept}
    plan = Plan({thing: _given(thing, fields, state.get(thing)) for thing, fields in kept.items()})
    base = {thing: fields for thing, fields in state.items() if thing not in removed}
    base |= {thing: _without_limits(thing[0], fields) for thing, fields in kept.items()}
    resolving = _Resolving(environment, plan, base, prune=False)
    resolving.before, resolving.replaces_history = state, True
    return resolving.everything(removed)


class _Resolving:
    def __init__(
        self, environment: str, plan: Plan, state: State, prune: bool, at: datetime | None = None
    ) -> None:
        self.environment, self.plan, self.state, self.prune = environment, plan, state, prune
        self.errors = Errors()
        #: The stored state, also where ``state`` leaves limits out.
        self.before, self.wanted = state, Wanted()
        self.now = at or timezone.now()
        self.checks_parents = True
        #: Prices that have begun may change: a whole configuration takes the place of another one.
        self.replaces_history = prune
        self._alike: dict[Any, Fields] = {}
        #: Tenant -> its parent in the plan.
        self.moved: dict[str, str] = {}

    def everything(self, removed: Wanted | None = None) -> Wanted:
        plan = self.plan
        if plan.environment and plan.environment != self.environment:
            self.errors.add(0, "environment", f"The plan is for {plan.environment}, not {self.environment}.")
            self.errors.settle()
        known = {kind: names_of([*self.state, *plan.things], kind) for kind in _PRUNED[:-1]}
        self.known, self.tiers, self.dependencies = known, known["tier"], known["dependency"]
        for kind in _PRUNED if self.prune else ():
            if kind in plan.sections:
                gone = names_of(self.state, kind) - names_of(plan.things, kind)
                self.wanted |= {(kind, name): None for name in gone}
                if kind in known:
                    known[kind] -= gone
        # Things that others take values from come first.
        for kind in _IN_ORDER:
            make: Callable[[str, Fields, Fields | None], Fields] = getattr(self, f"_{kind}")
            for (found, name), given in plan.things.items():
                if found == kind:
                    thing = (kind, name or self.environment)
                    self.wanted[thing] = make(name, given, self.state.get(thing))
        changed = names_of(plan.things, "template")
        if changed and not self.errors.found:
            self._follow(changed)
        self.wanted |= removed or {}
        if names_of(plan.things, "model"):
            for name, field, message in wrong_names({**self.state, **self.wanted}, self.wanted):
                self._error("model", name, field, message)
        if not self.errors.found and (names_of(self.wanted, "account") or names_of(self.wanted, "budget")):
            for kind, name, field, message in wrong_together({**self.state, **self.wanted}, self.wanted):
                self._error(kind, name, field, message)
        if not self.errors.found and names_of(self.wanted, "descriptors"):
            for name, message in descriptors.wrong_together({**self.state, **self.wanted}, self.wanted):
                self._error("descriptors", name, "file", message)
        for name, message in wrong_parents(self.environment, self.state, self.wanted, self.moved):
            self._error("tenant", name, "parent", message)
        if self.prune or removed:
            self._check_left()
        self.errors.settle()
        return self.wanted

    def _template(self, name: str, given: Fields, now: Fields | None) -> Fields:
        base = now or {"title": ""}
        present = {column: value for column, value in base.items() if column in VALUES}
        wanted = {column: value for column, value in given.items() if column in VALUES}
        columns = self._limit("template", name, "", {**present, **wanted}, wanted, present)
        return {"title": given.get("title", base["title"]), **columns}

    def _follow(self, templates: set[str]) -> None:
        """Apply changed templates to the limits that follow them, including limits outside the plan."""
        for thing, fields in list({**self.state, **self.wanted}.items()):
            prefix = PREFIX.get(thing[0], "")
            if not prefix or not fields or not templates.intersection(_followed(prefix, fields)):
                continue
            after = {field: value for field, value in fields.items() if not field.startswith(f"{prefix}.")}
            for limit, columns in limits_in(prefix, fields).items():
                if (template := columns.get("template")) in templates:
                    columns = followed(columns, self._values(template) or {})
                    for column, message in _contradictions(_frozen(columns), prefix == "subject_limits"):
                        said = f"{limit} of {thing[0]} {thing[1]} would become invalid: {message}"
                        self._error("template", template, column, said)
                after |= {sys.intern(f"{prefix}.{limit}.{name}"): value for name, value in columns.items()}
            self.wanted[thing] = after

    def _values(self, template: str) -> Fields | None:
        thing = ("template", template)
        return self.wanted[thing] if thing in self.wanted else self.state.get(thing)

    def _tier(self, name: str, given: Fields, now: Fields | None) -> Fields:
        base = now or {"title": "", "priority": 50}
        return _without_zeros(self._with_limits("tier", name, given, base, lambda limit: {}))

    def _dependency(self, name: str, given: Fields, now: Fields | None) -> Fields:
        if now is None and "kind" not in given:
            self._error("dependency", name, "kind", f"Choose a kind: {', '.join(Kind.values)}.")
        base: Fields = now or _new_dependency(given)
        if given.get("runbook") and not is_runbook(given["runbook"]):
            self._error("dependency", name, "runbook", f"There is no runbook {given['runbook']!r}.")
        if "runbook" in given:
            given = given | {"runbook": given["runbook"] or None}
        patch: Any = given.get(PROTECTION, {})
        protection = self._protection("dependency", name, base, patch, CALL, complete=self.prune)
        given, base = _unprotected(given), without_protection(base)
        fields = self._with_limits("dependency", name, given, base, lambda limit: VENDOR_DEFAULTS)
        fields = _without_zeros(fields) | protection
        if fields["breaker.open_max_ms"] < fields["breaker.open_ms"]:
            self._error("dependency", name, "breaker.open_max_ms", OPEN_TOO_SHORT)
        if 0 < fields.get("breaker.window_calls", 0) < fields["breaker.minimum_calls"]:
            self._error("dependency", name, "breaker.window_calls", WINDOW_TOO_FEW)
        return fields

    def _environment(self, name: str, given: Fields, now: Fields | None) -> Fields:
        base = dict(now or {})
        if self.prune and "tuning" in self.plan.sections:
            base = {field: value for field, value in base.items() if not field.startswith("tuning.")}
        if given.get("default_tier", base["default_tier"]) not in self.tiers:
            self._error("environment", name, "default_tier", "There is no such tier.")
        complete = self.prune and PROTECTION in self.plan.sections
        patch = given.get(PROTECTION, {})
        protection = self._protection("environment", name, base, patch, POD, complete=complete)
        given, base = _unprotected(given), without_protection(base)
        return (
            self._with_limits("environment", name, given, base, lambda limit: SUBJECT_DEFAULTS) | protection
        )

    def _model(self, name: str, given: Fields, now: Fields | None) -> Fields:
        base = now or {"aliases": [], "pool": ""}
        own = {field: given.get(field, base[field]) for field in ("aliases", "pool")}
        if own["pool"] and own["pool"] not in self.dependencies:
            self._error("model", name, "pool", f"There is no dependency {own['pool']!r}.")
        before, wanted = limits_in("prices", base), limits_in("prices", given)
        kept = {} if self.prune else before
        prices = {start: changed_price(kept.get(start, {}), given) for start, given in wanted.items()}
        prices = dict(sorted({**kept, **prices}.items()))
        history = {} if self.replaces_history else before
        for start, column, message in wrong_prices(prices, history, self.now):
            self._error("model", name, f"prices.{start}.{column}", message)
        return own | {
            f"prices.{start}.{column}": value
            for start, columns in prices.items()
            for column, value in columns.items()
        }

    def _account(self, name: str, given: Fields, now: Fields | None) -> Fields:
        return planned_account(given, now, self.dependencies, partial(self._error, "account", name))

    def _budget(self, name: str, given: Fields, now: Fields | None) -> Fields:
        if given.get("tenant") and "tenant" not in self.known:
            self.known["tenant"] = tenant_names(self.environment, self.plan, self.state, self.wanted)
        return planned_budget(name, given, now, self.known, self.now, partial(self._error, "budget", name))

    def _descriptors(self, name: str, given: Fields, now: Fields | None) -> Fields:
        text: str = {**(now or {"file": ""}), **given}["file"]
        for problem in descriptors.wrong_text(name, text, self.dependencies):
            self._error("descriptors", name, "file", problem)
        return {"file": text}

    def _protection(
        self, kind: str, name: str, base: Fields, patch: Any, shape: Shape, *, complete: bool
    ) -> Fields:
        """Return the flat protection. If the file is complete, what it leaves out is off."""
        if patch == {} and not complete:
            return {field: value for field, value in base.items() if field.startswith(f"{PROTECTION}.")}
        problems = Problems()
        had = protection_in(base)
        now_us = int(self.now.timestamp() * 1_000_000)
        after = changed(problems, {} if complete else had, patch, shape, now_us=now_us, had=had)
        for field, found in problems.errors.items():
            self._error(kind, name, field, " ".join(found))
        return flat_protection(after)

    def _tenant(self, name: str, given: Fields, now: Fields | None) -> Fields:
        if now is None and not is_plain_key(name):
            self._error("tenant", name, "", PLAIN_KEY)
        base = now or {"title": "", "suspended": False}
        if "parent" in given and self.checks_parents:
            self.moved[name] = given["parent"]
        tier = given.get("tier", base.get("tier"))
        if tier not in self.tiers:
            message = f"There is no tier {tier!r}." if tier else "Enter its tier."
            self._error("tenant", name, "tier", message)
            return base
        # Most tenants of a file are alike, so their quotas are computed once.
        key = (tier, _limit_items(given), _limit_items(base))
        limits = self._alike.get(key) if _is_hashable(key) else None
        if limits is None:
            before = len(self.errors.found)
            of_tier = self._tier_limits(tier)
            fields = self._with_limits("tenant", name, given, base, lambda limit: of_tier.get(limit, {}))
            limits = {field: value for field, value in fields.items() if field not in _OWN}
            if _is_hashable(key) and len(self.errors.found) == before:
                self._alike[key] = limits
        own = {field: given.get(field, base.get(field)) for field in _OWN}
        if not own["parent"]:
            del own["parent"]
        return {**own, **limits}

    def _tier_limits(self, tier: str) -> dict[str, Fields]:
        fields = self.wanted.get(("tier", tier)) or self.state.get(("tier", tier)) or {}
        return limits_in("quotas", fields)

    def _with_limits(
        self, kind: str, name: str, given: Fields, base: Fields, like: Callable[[str], Fields]
    ) -> Fields:
        """Merge ``given`` into ``base``. A new limit takes the columns of ``OPTIONAL`` from ``like``."""
        prefix = PREFIX[kind]
        present = limits_in(prefix, base)
        wanted = limits_in(prefix, given)
        mark = f"{prefix}."
        fields = {field: value for field, value in base.items() if not field.startswith(mark)}
        fields |= {field: value for field, value in given.items() if not field.startswith(mark)}
        complete = self.prune and (kind != "environment" or "subject_limits" in self.plan.sections)
        for limit in sorted(wanted.keys() | (set() if complete else present.keys())):
            columns = present.get(limit, {})
            if limit in wanted:
                usual = {column: value for column, value in like(limit).items() if column in OPTIONAL}
                full = {**(columns or usual), **wanted[limit]}
                columns = self._limit(kind, name, limit, full, wanted[limit], columns)
            fields |= {sys.intern(f"{prefix}.{limit}.{column}"): value for column, value in columns.items()}
        return fields

    def _limit(
        self, kind: str, name: str, limit: str, columns: Fields, given: Fields, present: Fields
    ) -> Fields:
        where = f"{PREFIX[kind]}.{limit}." if limit else ""
        template = None
        if follows := columns.get("template"):
            template = self._values(follows)
            if template is None:
                self._error(kind, name, f"{where}template", f"There is no template {follows!r}.")
                return columns
        missing = [needed for needed in ("limit", "window_s") if template is None and needed not in columns]
        for needed in missing:
            self._error(kind, name, f"{where}{needed}", "A new limit needs this.")
        if missing:
            return columns
        if given.get("algorithm") not in (None, Algorithm.FIXED_WINDOW):
            given = {"period": "", **given}
            columns = {**columns, "period": given["period"]}
        if template is None:
            columns = plain_columns(columns | ALONE)
        else:
            kept = () if given.get("template") else present.get("own", ())
            columns = followed({**columns, "own": own_columns([*kept, *given])}, template)
        full = {**OPTIONAL, **columns}
        if full["dependency"] and full["dependency"] not in self.dependencies:
            self._error(kind, name, f"{where}dependency", f"There is no dependency {full['dependency']!r}.")
        ends, now = given.get("expires_at"), self.before.get((kind, name), {}).get(f"{where}expires_at")
        if ends and ends != now and (wrong := wrong_end(datetime.fromisoformat(ends), self.now)):
            self._error(kind, name, f"{where}expires_at", wrong)
        for column in () if columns.get("expires_at") else ("expires_at", "returns_to"):
            columns.pop(column, None)
        if present and "expires_at" in columns and "expires_at" not in present:
            columns["returns_to"] = present
        for column, message in _contradictions(_frozen(full), kind == "environment"):
            self._error(kind, name, f"{where}{column}", message)
        return columns

    def _check_left(self) -> None:
        """Refuse to remove something that is still in use."""
        removed = [thing for thing, fields in self.wanted.items() if fields is None]
        lost, gone = names_of(removed, "tier"), names_of(removed, "dependency")
        templates = names_of(removed, "template")
        environment = ("environment", self.environment)
        left = {**self.state, **self.wanted}
        default = (left[environment] or {}).get("default_tier")
        if default in lost:
            self.errors.add(0, f"tiers.{default}", "It is the default tier, so it cannot be removed.")
        for kind, name, message in still_used(left, removed):
            self._error(kind, name, "", message)
        for name, message in descriptors.still_named(left, gone):
            self._error("dependency", name, "", message)
        for (kind, name), fields in left.items():
            if not fields or not (gone or lost or templates):
                continue
            for template in templates.intersection(_followed(PREFIX.get(kind, ""), fields)):
                self.errors.add(0, f"templates.{template}", f"A limit of {kind} {name} still follows it.")
            if kind == "model" and fields["pool"] in gone:
                self.errors.add(0, f"dependencies.{fields['pool']}", f"It is still the pool of model {name}.")
            if kind not in ("tier", "tenant"):
                continue
            if kind == "tenant" and fields.get("tier") in lost:
                self.errors.add(0, f"tiers.{fields['tier']}", f"Tenant {name} still has this tier.")
            for limit, columns in limits_in("quotas", fields).items():
                if columns.get("dependency") in gone:
                    message = f"Quota {limit} of {kind} {name} still counts its calls."
                    self.errors.add(0, f"dependencies.{columns['dependency']}", message)

    def _error(self, kind: str, name: str, field: str, message: str) -> None:
        plural = _PLURALS.get(kind, f"{kind}s")
        where = ".".join(part for part in (plural, name, field) if part)
        self.errors.add(self.plan.lines.get((kind, name), 0), where, message)


def _without_limits(kind: str, fields: Fields) -> Fields:
    mark = f"{PREFIX.get(kind)}."
    return (
        {}
        if kind == "template"
        else {field: value for field, value in fields.items() if not field.startswith(mark)}
    )


def _given(thing: EntityKey, fields: Fields, now: Fields | None) -> Fields:
    """Return what a plan would give to make a thing that has exactly these fields."""
    kind = thing[0]
    if kind == "template":
        return full_columns(fields)
    if kind in ("model", "account", "budget", "descriptors"):
        return fields
    given = _without_limits(kind, fields) if now is None else {}
    if kind == "tenant" and fields.get("parent", "") == (now or {}).get("parent", ""):
        given.pop("parent", None)
    elif kind == "tenant":
        given["parent"] = fields.get("parent", "")
    for limit, columns in limits_in(PREFIX[kind], fields).items():
        edit = {"dependency": "", "service": "", **columns_of_edit(columns)}
        full = edit if columns.get("template") else full_columns(edit)
        given |= {f"{PREFIX[kind]}.{limit}.{name}": value for name, value in full.items() if name != "own"}
    return given


def _followed(prefix: str, fields: Fields) -> list[str]:
    """Return the templates that the limits among these fields follow."""
    return [value for field, value in fields.items() if field.endswith(".template") and prefix]


def _limit_items(fields: Fields) -> tuple[tuple[str, Any], ...]:
    return tuple(item for item in fields.items() if item[0] not in _OWN)


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:  # a list or a document is among the values
        return False
    return True


#: Fields of tiers and dependencies that a row leaves out at 0.
_ZEROS = ("wait_ms", *OPTIONAL_COLUMNS, "breaker.window_calls")


def _without_zeros(fields: Fields) -> Fields:
    """Return the fields in the form of a row."""
    return {field: value for field, value in fields.items() if field not in _ZEROS or value}


def _unprotected(given: Fields) -> Fields:
    return {field: value for field, value in given.items() if field != PROTECTION}


def _new_dependency(given: Fields) -> Fields:
    kind = given.get("kind", Kind.EXTERNAL)
    columns_given = [field.removeprefix("breaker.") for field in given if field.startswith("breaker.")]
    row = Dependency(kind=kind, **breaker_preset(kind, columns_given))
    columns = ("title", "kind", "owner", "fallback_note", "timeout_ms")
    return {
        **{column: getattr(row, column) for column in columns},
        "kind": str(kind),
        **TIME_PRESETS.get(kind, {}),
        "runbook": None,
        **breaker_fields(row),
    }


def _frozen(columns: Fields) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in {**OPTIONAL, **columns}.items()
        if name not in ("returns_to", "own")
    )


@lru_cache(maxsize=4_096)
def _contradictions(columns: tuple[tuple[str, Any], ...], subject: bool) -> tuple[tuple[str, str], ...]:
    problems = Problems()
    check_together(problems, dict(columns), subject=subject)
    return tuple((field, " ".join(found)) for field, found in problems.errors.items())
