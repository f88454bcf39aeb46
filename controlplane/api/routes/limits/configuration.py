"""Settings of a whole environment."""

from django.http import HttpRequest, HttpResponse
from msgspec import to_builtins
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.versions import revision_read
from controlplane.api.schemas.configuration_out import (
    ConfigurationOut,
    DifferingOut,
    RevisionOut,
)
from controlplane.api.schemas.edits_in import (
    DefaultTierIn,
    Environment,
    PageSize,
    TuningIn,
)
from controlplane.api.schemas.protection import PodProtectionChange, PodProtectionOut, change_in
from controlplane.editing import edits
from controlplane.policies.document import environment_of, tuning_of
from controlplane.policies.older_defaults import DifferingRows, differing_rows
from controlplane.policies.protection import POD, completed

router = Router()


@router.get("", response=ConfigurationOut)
def get_configuration(
    request: HttpRequest, response: HttpResponse, environment: Environment
) -> ConfigurationOut:
    """The newest revision, the default tier and the timings of the fleet."""
    row = environment_of(environment)
    response["ETag"] = f'"{row.revision}"'
    return ConfigurationOut(
        environment=row.slug,
        epoch=row.epoch,
        revision=row.revision,
        default_tier=row.default_tier.name,
        tuning=to_builtins(tuning_of(row)),
        protection=PodProtectionOut(**completed(row.protection, POD)) if row.protection else None,
    )


@router.get("/older-defaults", response=DifferingOut)
def list_older_defaults(
    request: HttpRequest, environment: Environment, limit: PageSize = 100
) -> DifferingRows:
    """Breakers and limits that differ from a new row in a value whose default has changed.

    A new default never changes an existing row.
    """
    return differing_rows(environment, most=limit)


@router.put("/default-tier", response=RevisionOut, auth=needs("edit_quota"))
def set_default_tier(request: HttpRequest, environment: Environment, values: DefaultTierIn) -> RevisionOut:
    """Set the tier of unregistered tenants."""
    revision = edits.set_default_tier(
        environment=environment, tier=values.tier, reason=values.reason, actor=actor_of(request)
    )
    return RevisionOut(revision=revision)


@router.patch("/tuning", response=RevisionOut, auth=needs("edit_breaker_policy"))
def set_tuning(request: HttpRequest, environment: Environment, values: TuningIn) -> RevisionOut:
    """Change timings of every agent of the fleet."""
    revision = edits.set_tuning(
        environment=environment, tuning=values.tuning, reason=values.reason, actor=actor_of(request)
    )
    return RevisionOut(revision=revision)


@router.patch("/protection", response=RevisionOut, auth=needs("edit_breaker_policy"))
def set_pod_protection(
    request: HttpRequest, environment: Environment, values: PodProtectionChange
) -> RevisionOut:
    """Change what protects every pod: shedding, readiness, and which parts only observe.

    409 if the protection was changed after the revision that you have read.
    """
    revision = edits.set_pod_protection(
        environment=environment,
        protection=change_in(values.protection),
        observe_for_s=values.observe_for_s.model_dump(exclude_none=True),
        expected_revision=revision_read(request, values.expected_revision),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)
