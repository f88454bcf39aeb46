from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.versions import version_read
from controlplane.api.schemas.configuration_out import RevisionOut, TierOut
from controlplane.api.schemas.edits_in import Environment, ExpectedVersion, Reason, Slug, TierIn
from controlplane.api.schemas.limits import QuotaIn
from controlplane.editing import edits
from controlplane.errors import find
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
    row = find(_tiers(environment), "tier", name=tier)
    response["ETag"] = f'"{row.version}"'
    return row


@router.put("/{tier}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def set_quota(
    request: HttpRequest, environment: Environment, tier: Slug, quota: Slug, values: QuotaIn
) -> RevisionOut:
    """Set a quota for every tenant of the tier that does not override it. 422 without any value."""
    revision = edits.set_tier_quota(
        environment=environment,
        tier=tier,
        quota=quota,
        expected_version=version_read(request, values.expected_version),
        **values.model_dump(exclude={"expected_version"}),
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.delete("/{tier}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def remove_quota(
    request: HttpRequest,
    environment: Environment,
    tier: Slug,
    quota: Slug,
    reason: Reason,
    expected_version: ExpectedVersion | None = None,
) -> RevisionOut:
    revision = edits.remove_tier_quota(
        environment=environment,
        tier=tier,
        quota=quota,
        expected_version=version_read(request, expected_version),
        reason=reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


def _tiers(environment: str) -> QuerySet[Tier]:
    quotas = Prefetch("quotas", queryset=TierQuota.objects.order_by("name"))
    return (
        Tier.objects.filter(environment=environment_of(environment))
        .prefetch_related(quotas)
        .order_by("-priority", "name")
    )
