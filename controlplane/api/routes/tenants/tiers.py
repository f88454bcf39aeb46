from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.versions import RemovalInQuery, edit_arguments, find_version
from controlplane.api.schemas.configuration_out import RevisionOut, TierOut
from controlplane.api.schemas.edits_in import Environment, Slug, TierIn
from controlplane.api.schemas.limits import QuotaIn
from controlplane.editing import edits
from controlplane.policies.document import environment_of
from controlplane.policies.models import Tier, TierQuota

router = Router()


@router.get("", response=list[TierOut])
def list_tiers(request: HttpRequest, environment: Environment) -> QuerySet[Tier]:
    return _tiers(environment)


@router.post("", response={201: RevisionOut}, auth=needs("edit_quota"))
def create_tier(request: HttpRequest, environment: Environment, values: TierIn) -> RevisionOut:
    """Create a tier without quotas; add some before you move tenants there."""
    revision = edits.create_tier(
        environment=environment,
        tier=values.name,
        actor=actor_of(request),
        **values.model_dump(exclude={"name"}),
    )
    return RevisionOut(revision=revision)


@router.get("/{tier}", response=TierOut)
def get_tier(request: HttpRequest, response: HttpResponse, environment: Environment, tier: Slug) -> Tier:
    return find_version(response, _tiers(environment), "tier", name=tier)


@router.put("/{tier}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def set_quota(
    request: HttpRequest, environment: Environment, tier: Slug, quota: Slug, values: QuotaIn
) -> RevisionOut:
    """Set a quota for every tenant of the tier that does not override it. 422 without any value."""
    revision = edits.set_tier_quota(
        environment=environment, tier=tier, quota=quota, **edit_arguments(request, values)
    )
    return RevisionOut(revision=revision)


@router.delete("/{tier}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def remove_quota(
    request: HttpRequest, environment: Environment, tier: Slug, quota: Slug, removal: RemovalInQuery
) -> RevisionOut:
    revision = edits.remove_tier_quota(
        environment=environment, tier=tier, quota=quota, **edit_arguments(request, removal)
    )
    return RevisionOut(revision=revision)


def _tiers(environment: str) -> QuerySet[Tier]:
    quotas = Prefetch("quotas", queryset=TierQuota.objects.order_by("name"))
    return (
        Tier.objects.filter(environment=environment_of(environment))
        .prefetch_related(quotas)
        .order_by("-priority", "name")
    )
