"""Limits of callers without a tenant: by address, API key, user or endpoint; and limits of all callers."""

from typing import Unpack

from controlplane.audit.actor import Actor
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.limit_checks import check_new_limit
from controlplane.editing.rows.limit_rows import given_columns, put_limit, remove_limit
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, environment_fields, limit_fields
from controlplane.policies.limit_fields import SubjectLimitOptions
from controlplane.policies.limits import SUBJECT_DEFAULTS
from controlplane.policies.models import Environment
from controlplane.validation import Problems


def set_subject_limit(
    *,
    environment: str,
    name: str,
    reason: str,
    actor: Actor,
    **options: Unpack[SubjectLimitOptions],
) -> int:
    """Limit requests without a tenant by ``per``, or all requests to a ``service`` together. By default
    each pod applies its local share while Redis is down.
    """
    given = given_columns(options)
    check_new_limit(name, given, reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        row = environment_of(environment)
        before = environment_fields(row)
        put_limit(row.subject_limits, name, given, environment=environment, like=SUBJECT_DEFAULTS)
        _audit(revision, "subject_limit.set", row, before)
    return revision.number


def remove_subject_limit(*, environment: str, name: str, reason: str, actor: Actor) -> int:
    problems = Problems()
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        row = environment_of(environment)
        before = environment_fields(row)
        remove_limit(row.subject_limits, name)
        _audit(revision, "subject_limit.removed", row, before)
    return revision.number


def _audit(revision: Revision, action: str, row: Environment, whole: Fields) -> None:
    before = {field: value for field, value in whole.items() if field.startswith("subject_limits.")}
    after = limit_fields("subject_limits", row.subject_limits.all())
    revision.audit(action, target_kind="environment", target_name=row.slug, before=before, after=after)
    revision.change("environment", row.slug, before=whole, after=environment_fields(row))
