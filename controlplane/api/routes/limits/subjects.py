"""Limits of callers without a tenant, and of all callers of a service.

They belong to the environment, and have no separate version.
"""

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.configuration_out import RevisionOut
from controlplane.api.schemas.edits_in import Environment, Reason, Slug
from controlplane.api.schemas.limits import LimitIn, LimitOut
from controlplane.editing import edits
from controlplane.policies.document import environment_of
from controlplane.policies.models import SubjectLimit

router = Router()


@router.get("", response=list[LimitOut])
def list_limits(request: HttpRequest, environment: Environment) -> QuerySet[SubjectLimit]:
    return environment_of(environment).subject_limits.order_by("name")


@router.put("/{name}", response=RevisionOut, auth=needs("edit_quota"))
def set_limit(request: HttpRequest, environment: Environment, name: Slug, values: LimitIn) -> RevisionOut:
    """Limit requests without a tenant by ``per``, or all requests to a ``service`` together.

    422 without any value.
    """
    revision = edits.set_subject_limit(
        environment=environment, name=name, actor=actor_of(request), **values.model_dump()
    )
    return RevisionOut(revision=revision)


@router.delete("/{name}", response=RevisionOut, auth=needs("edit_quota"))
def remove_limit(request: HttpRequest, environment: Environment, name: Slug, reason: Reason) -> RevisionOut:
    revision = edits.remove_subject_limit(
        environment=environment, name=name, reason=reason, actor=actor_of(request)
    )
    return RevisionOut(revision=revision)
