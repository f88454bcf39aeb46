from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.http.auth import actor_of, check_environment, needs
from controlplane.api.http.versions import RemovalInQuery, edit_arguments, find_version, version_read
from controlplane.api.schemas.configuration_out import DependencyOut, RevisionOut
from controlplane.api.schemas.edits_in import (
    BreakerPolicyIn,
    DescriptionIn,
    Environment,
    Slug,
)
from controlplane.api.schemas.limits import VendorLimitIn
from controlplane.api.schemas.protection import DependencyIn, ProtectionIn, change_in
from controlplane.editing import edits
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency, VendorLimit

router = Router()


@router.get("", response=list[DependencyOut])
def list_dependencies(request: HttpRequest, environment: Environment) -> QuerySet[Dependency]:
    return _dependencies(environment)


@router.post("", response={201: RevisionOut}, auth=needs("edit_breaker_policy"))
def create_dependency(request: HttpRequest, environment: Environment, values: DependencyIn) -> RevisionOut:
    """Register a dependency; ``breaker`` replaces values of the preset of its kind."""
    revision = edits.create_dependency(
        environment=environment,
        dependency=values.name,
        actor=actor_of(request),
        protection=None if values.protection is None else change_in(values.protection),
        **values.model_dump(exclude={"name", "protection"}),
    )
    return RevisionOut(revision=revision)


@router.get("/{dependency}", response=DependencyOut)
def get_dependency(
    request: HttpRequest, response: HttpResponse, environment: Environment, dependency: Slug
) -> Dependency:
    return find_version(response, _dependencies(environment), "dependency", name=dependency)


@router.put("/{dependency}/description", response=RevisionOut, auth=needs("edit_breaker_policy"))
def describe(
    request: HttpRequest, environment: Environment, dependency: Slug, values: DescriptionIn
) -> RevisionOut:
    """Set title, owner and other descriptions of it. A role for one service cannot change the owner."""
    if not _dependencies(environment).filter(name=dependency, owner=values.owner).exists():
        check_environment(request, "edit_breaker_policy")
    revision = edits.describe_dependency(
        environment=environment, dependency=dependency, **edit_arguments(request, values)
    )
    return RevisionOut(revision=revision)


@router.patch("/{dependency}/breaker", response=RevisionOut, auth=needs("edit_breaker_policy"))
def set_breaker_policy(
    request: HttpRequest, environment: Environment, dependency: Slug, values: BreakerPolicyIn
) -> RevisionOut:
    """Change when the breaker opens, probes and closes."""
    revision = edits.set_breaker_policy(
        environment=environment, dependency=dependency, **edit_arguments(request, values)
    )
    return RevisionOut(revision=revision)


@router.patch("/{dependency}/protection", response=RevisionOut, auth=needs("edit_breaker_policy"))
def set_protection(
    request: HttpRequest, environment: Environment, dependency: Slug, values: ProtectionIn
) -> RevisionOut:
    """Change what protects a pod from this dependency: its bulkhead, local rate, and retries."""
    revision = edits.set_protection(
        environment=environment,
        dependency=dependency,
        protection=change_in(values.protection),
        preset=values.preset.model_dump(exclude_none=True),
        expected_version=version_read(request, values.expected_version),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.put("/{dependency}/vendor-limits/{name}", response=RevisionOut, auth=needs("edit_breaker_policy"))
def set_vendor_limit(
    request: HttpRequest, environment: Environment, dependency: Slug, name: Slug, values: VendorLimitIn
) -> RevisionOut:
    """Set what the vendor allows the whole fleet; strict by default. 422 without any value."""
    revision = edits.set_vendor_limit(
        environment=environment, dependency=dependency, name=name, **edit_arguments(request, values)
    )
    return RevisionOut(revision=revision)


@router.delete("/{dependency}/vendor-limits/{name}", response=RevisionOut, auth=needs("edit_breaker_policy"))
def remove_vendor_limit(
    request: HttpRequest, environment: Environment, dependency: Slug, name: Slug, removal: RemovalInQuery
) -> RevisionOut:
    revision = edits.remove_vendor_limit(
        environment=environment, dependency=dependency, name=name, **edit_arguments(request, removal)
    )
    return RevisionOut(revision=revision)


def _dependencies(environment: str) -> QuerySet[Dependency]:
    limits = Prefetch("vendor_limits", queryset=VendorLimit.objects.order_by("name"))
    rows = Dependency.objects.filter(environment=environment_of(environment))
    return rows.prefetch_related(limits).order_by("name")
