"""Templates: values that many limits follow. An edit is one revision, however many limits follow."""

from typing import Unpack

from controlplane.audit.actor import Actor
from controlplane.editing.plans.difference import Difference, difference
from controlplane.editing.plans.plan import Plan, PlanErrors
from controlplane.editing.plans.resolving import PREFIX, Wanted, fit
from controlplane.editing.revise import revise
from controlplane.editing.rows.limit_checks import check_new_limit, given_columns
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.conflicts import check_version
from controlplane.policies.fields import Fields, limits_in, replace_limit, template_fields
from controlplane.policies.history import Changed
from controlplane.policies.limit_fields import LimitValues
from controlplane.policies.limits import ALONE, followed, plain_columns
from controlplane.policies.models import Template
from controlplane.policies.state import State, read_state, tenants_following
from controlplane.policies.template_followers import Followers, count_followers
from controlplane.validation import Problems


def set_template(
    *,
    environment: str,
    template: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    title: str | None = None,
    **values: Unpack[LimitValues],
) -> int:
    """Create a template, or change the given values of it and of every limit that follows it.

    A new one needs ``limit`` and ``window_s``, and 0 for ``expected_version``. Raises
    ``InvalidEdit`` also when a limit that follows the template would become invalid.
    """
    given = _given(template, title, values, reason)
    plan = _plan(template, given)
    found = _difference(environment, plan)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        now = _check_version(environment, template, expected_version)
        if found.revision != revision.number - 1:
            # Another edit was faster. Nothing else can change while this revision is being made.
            found = _difference(environment, plan)
        write_changes(revision, found.changes)
        row = Template.objects.get(environment_id=environment, name=template)
        after = template_fields(row)
        revision.audit("template.set", target_kind="template", target_name=template, before=now, after=after)
    return revision.number


def preview_template(
    *, environment: str, template: str, title: str | None = None, **values: Unpack[LimitValues]
) -> Difference:
    """Return what ``set_template`` would change. Nothing is written."""
    return _difference(environment, template_plan(template, title=title, **values))


def template_plan(template: str, *, title: str | None = None, **values: Unpack[LimitValues]) -> Plan:
    """Return the edit as a plan, for a preview or a replay. Raises ``InvalidEdit``."""
    return _plan(template, _given(template, title, values, "Only a preview"))


def remove_template(
    *,
    environment: str,
    template: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    keep_values: bool = False,
    instead: str | None = None,
) -> int:
    """Remove a template. If limits follow it, the caller chooses what happens to them.

    They keep their present values (``keep_values``), or follow another template ``instead``. Raises
    ``InvalidEdit``: without a choice, it names the followers; otherwise limits that would be invalid.
    """
    problems = Problems()
    problems.reason(reason)
    if instead is not None:
        problems.slug("instead", instead)
    if keep_values and instead is not None:
        problems.add("instead", "Keep the values, or choose another template: not both.")
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        now = _check_version(environment, template, expected_version)
        if now is None:
            raise NotFound("template", template)
        who = count_followers(environment).get(template)
        if who is not None and not keep_values and instead is None:
            raise InvalidEdit(
                {"template": [f"It is followed by {who}: keep their values, or choose another template."]}
            )
        write_changes(revision, _removal(environment, template, instead))
        revision.audit(
            "template.removed",
            target_kind="template",
            target_name=template,
            before=now,
            after={"instead": instead} if instead else {"keep_values": keep_values},
        )
    return revision.number


def changed_followers(found: Difference, template: str) -> Followers:
    """Count the limits that follow the template and change with the edit."""
    owners: dict[str, set[str]] = {kind: set() for kind in PREFIX}
    limits = subject_limits = 0
    for change in found.changes:
        prefix = PREFIX.get(change.kind)
        states = (change.before or {}, change.after or {})
        before, after = (limits_in(prefix, fields) if prefix else {} for fields in states)
        for limit, columns in after.items():
            if columns.get("template") == template and columns != before.get(limit):
                owners[change.kind].add(change.name)
                limits, subject_limits = limits + 1, subject_limits + (change.kind == "environment")
    return Followers(
        limits=limits,
        tiers=len(owners["tier"]),
        tenants=len(owners["tenant"]),
        dependencies=len(owners["dependency"]),
        subject_limits=subject_limits,
    )


def _fitted(environment: str, wanted: Wanted, state: State) -> Wanted:
    """Check limits that follow another template: it may contradict their own values."""
    try:
        return fit(environment, wanted, state)
    except PlanErrors as errors:
        said = [f"{error.where} would become invalid: {error.message}" for error in errors.found[:5]]
        raise InvalidEdit({"instead": said}) from errors


def _given(template: str, title: str | None, values: LimitValues, reason: str) -> Fields:
    given = given_columns(values)
    if title is not None:
        given["title"] = title
    check_new_limit(template, given, reason)
    problems = Problems()
    problems.text("title", given.get("title", ""), 200)
    problems.settle()
    return given


def _plan(template: str, given: Fields) -> Plan:
    return Plan(sections={"template"}, things={("template", template): given})


def _difference(environment: str, plan: Plan) -> Difference:
    """Compare. Problems are named by the field of a form, not by their place in a file."""
    try:
        return difference(environment, plan)
    except PlanErrors as errors:
        found: dict[str, list[str]] = {}
        for error in errors.found:
            found.setdefault(error.where.rpartition(".")[2], []).append(error.message)
        raise InvalidEdit(found) from errors


def _check_version(environment: str, template: str, expected: int | None) -> Fields | None:
    row = Template.objects.filter(environment_id=environment, name=template).first()
    if row is None:
        if expected:
            raise NotFound("template", template)
        return None
    now = template_fields(row)
    check_version(
        environment=environment,
        target_kind="template",
        target_name=template,
        expected=expected,
        now=now,
    )
    return now


def _removal(environment: str, template: str, instead: str | None) -> list[Changed]:
    """Return the changes of the template and of the limits that follow it."""
    state = read_state(environment, tenants=tenants_following(environment, {template}))
    values = None if instead is None else state.get(("template", instead))
    if instead is not None and (values is None or instead == template):
        raise InvalidEdit({"instead": ["No other template has this name."]})
    after = {key: _without(key[0], fields, template, instead, values) for key, fields in state.items()}
    wanted: Wanted = {key: fields for key, fields in after.items() if fields != state[key]}
    wanted["template", template] = None
    fitted = wanted if instead is None else _fitted(environment, wanted, state)
    return [Changed(*key, state[key], fields) for key, fields in fitted.items()]


def _without(kind: str, fields: Fields, template: str, instead: str | None, values: Fields | None) -> Fields:
    """Return the fields of an entity after its limits stop following ``template``."""
    prefix, after = PREFIX.get(kind, ""), fields
    for limit, columns in limits_in(prefix, fields).items() if prefix else ():
        if columns.get("template") != template:
            continue
        if values is None:
            columns = plain_columns(columns | ALONE)
        else:
            columns = followed({**columns, "template": instead}, values)
        after = replace_limit(prefix, limit, after, columns)
    return after
