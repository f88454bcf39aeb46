"""The page of a caller that is not registered: what it asks, and which limits it has without a record."""

from dataclasses import dataclass
from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from controlplane.accounts.permissions import environment_in
from controlplane.policies.limits import columns_of
from controlplane.policies.models import Environment, Tenant
from controlplane.status.read_facts import read_pods
from controlplane.usage.rollups import Counted, counted_by_rule
from controlplane.usage.what_if import DAYS
from dashboard.live.known import no_data_words
from dashboard.views.page import context_of, not_found
from dashboard.words.rate_words import rate_words
from fuseboard.contract.words import is_subject


@dataclass(frozen=True, kw_only=True)
class _Quota:
    name: str
    limit: str
    #: ``None`` when the caller was never among the busiest.
    week: Counted | None


def unregistered_page(request: HttpRequest, key: str) -> HttpResponse:
    """404 for a text that can be the id of no tenant."""
    environment = (
        Environment.objects.select_related("default_tier").filter(pk=environment_in(request)).first()
    )
    if environment is None or not is_subject(key):
        return not_found(request, "No such tenant", "No tenant can have this id.")
    removed = Tenant.objects.filter(environment=environment_in(request), key=key, deleted=True).exists()
    tier = environment.default_tier
    weeks = counted_by_rule(environment_in(request), key, since=timezone.now() - timedelta(days=DAYS))
    quotas = [
        _Quota(name=quota.name, limit=rate_words(columns_of(quota)), week=weeks.get(quota.name))
        for quota in tier.quotas.order_by("name")
    ]
    facts = read_pods(environment_in(request))
    context = context_of(
        request,
        "tenants",
        key=key,
        here=facts,
        no_data=no_data_words(facts),
        caller=key,
        removed=removed,
        tier=tier,
        quotas=quotas,
    )
    # Pods report the busiest tenants only: without a figure, the rate is unknown, not zero.
    context["traffic"] = next((row for row in facts.figures.tenants if row.tenant == key), None)
    context["seen"] = bool(weeks) or context["traffic"] is not None
    context["days"] = DAYS
    return render(request, "dashboard/unregistered.html", context)
