"""The tiers: how many tenants each has, and its quotas."""

from dataclasses import dataclass

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.policies.limits import columns_of
from controlplane.policies.models import Environment, Tier
from dashboard.views.page import context_of
from dashboard.words.rate_words import rate_words


@dataclass(frozen=True, kw_only=True)
class TierLine:
    name: str
    title: str
    priority: int
    tenants: int
    #: Name of each quota, and its rate in words.
    quotas: list[tuple[str, str]]
    default: bool


@require_GET
@require_role("viewer")
def tiers(request: HttpRequest) -> HttpResponse:
    default = Environment.objects.values_list("default_tier__name", flat=True).get(pk=environment_in(request))
    living = Count("tenants", filter=Q(tenants__deleted=False))
    rows = (
        Tier.objects.filter(environment=environment_in(request))
        .annotate(living=living)
        .prefetch_related("quotas")
    )
    lines = [
        TierLine(
            name=row.name,
            title=row.title,
            priority=row.priority,
            tenants=row.living,
            quotas=[
                (quota.name, rate_words(columns_of(quota)))
                for quota in sorted(row.quotas.all(), key=lambda quota: quota.name)
            ],
            default=row.name == default,
        )
        for row in rows.order_by("-priority", "name")
    ]
    return render(request, "dashboard/tiers.html", context_of(request, "tiers", rows=lines))
