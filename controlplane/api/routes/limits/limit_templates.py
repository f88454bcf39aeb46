"""Templates: values that many limits inherit."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.http.auth import needs
from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.http.one_at_a_time import one_at_a_time
from controlplane.api.http.versions import RemovalInQuery, edit_arguments
from controlplane.api.routes.tenants.plans import planned
from controlplane.api.schemas.configuration_out import FollowerOut, FollowersOut, RevisionOut, TemplateOut
from controlplane.api.schemas.edits_in import (
    Environment,
    Flag,
    PageSize,
    Slug,
)
from controlplane.api.schemas.limits import TemplateIn
from controlplane.api.schemas.operations_out import PlannedOut
from controlplane.editing import edits
from controlplane.editing.edits.limit_templates import changed_followers
from controlplane.errors import find
from controlplane.policies.document import environment_of
from controlplane.policies.models import Template
from controlplane.policies.template_followers import Followers, count_followers, followers

router = Router()


class TemplatePlannedOut(PlannedOut):
    #: How many limits would change.
    followers: FollowersOut


@router.get("", response=list[TemplateOut])
def list_templates(request: HttpRequest, environment: Environment) -> list[TemplateOut]:
    who = count_followers(environment)
    rows = environment_of(environment).templates.order_by("name")
    return [_out(row, who.get(row.name, Followers())) for row in rows]


@router.get("/{template}", response=TemplateOut)
def get_template(
    request: HttpRequest, response: HttpResponse, environment: Environment, template: Slug
) -> TemplateOut:
    row = _find(environment, template)
    response["ETag"] = f'"{row.version}"'
    return _out(row, count_followers(environment).get(template, Followers()))


@router.get("/{template}/followers", response=list[FollowerOut])
def list_followers(
    request: HttpRequest, environment: Environment, template: Slug, limit: PageSize = 100
) -> Any:
    """The first limits that follow it, and the values that each overrides."""
    return followers(environment, _find(environment, template).name, most=limit)


@router.put("/{template}", response=RevisionOut, auth=needs("edit_quota"))
def set_template(
    request: HttpRequest, environment: Environment, template: Slug, values: TemplateIn
) -> RevisionOut:
    """Create a template, on version 0, or change one together with every limit that follows it: one
    revision. 422 without any value and without a title.
    """
    revision = edits.set_template(
        environment=environment, template=template, **edit_arguments(request, values)
    )
    return RevisionOut(revision=revision)


@router.post("/{template}/preview", response=TemplatePlannedOut, auth=needs("edit_quota"))
@changes_nothing
@one_at_a_time
def preview(
    request: HttpRequest, environment: Environment, template: Slug, values: TemplateIn
) -> TemplatePlannedOut:
    """Preview that change and the limits it affects.

    Each caller gets one plan, apply, preview, or what-if at a time.
    """
    found = edits.preview_template(
        environment=environment,
        template=template,
        **values.model_dump(exclude={"expected_version", "reason"}),
    )
    who = FollowersOut.model_validate(changed_followers(found, template))
    return TemplatePlannedOut(**planned(found).model_dump(), followers=who)


@router.delete("/{template}", response=RevisionOut, auth=needs("edit_quota"))
def remove_template(
    request: HttpRequest,
    environment: Environment,
    template: Slug,
    removal: RemovalInQuery,
    keep_values: Flag = False,
    instead: Slug | None = None,
) -> RevisionOut:
    """Delete it. Limits that follow it keep their values, or follow another template ``instead``: choose
    one.
    """
    revision = edits.remove_template(
        environment=environment,
        template=template,
        keep_values=keep_values,
        instead=instead,
        **edit_arguments(request, removal),
    )
    return RevisionOut(revision=revision)


def _find(environment: str, template: str) -> Template:
    return find(environment_of(environment).templates.all(), "template", name=template)


def _out(row: Template, who: Followers) -> TemplateOut:
    fields = {name: getattr(row, name) for name in TemplateOut.model_fields if name != "followers"}
    return TemplateOut(**fields, followers=FollowersOut.model_validate(who))
