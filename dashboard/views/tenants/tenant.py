"""The page of one tenant or of a caller that is not registered, and effective settings."""

from dataclasses import dataclass
from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.policies.effective import effective
from controlplane.policies.limits import columns_of
from controlplane.policies.models import Environment, Tenant
from controlplane.reconciliation.report import calls_alone
from controlplane.status.facts import PodFacts
from controlplane.status.read_facts import read_pods
from controlplane.usage.rollups import Counted, counted_by_rule
from controlplane.usage.what_if import DAYS, what_if_shadow
from dashboard.live.charts import Chart, in_context, of_tenant
from dashboard.live.known import no_data_words
from dashboard.live.tenant import QuotaRow, members, parents, tenant_context
from dashboard.views.page import context_of, not_found, text_parameter
from dashboard.words.change_words import field_words
from dashboard.words.rate_words import rate_words
from fuseboard.contract.words import is_subject


@dataclass(frozen=True, kw_only=True)
class _Quota:
    name: str
    limit: str
    #: ``None`` when the caller was never among the busiest.
    week: Counted | None


@require_GET
@require_role("viewer")
def tenant(request: HttpRequest) -> HttpResponse:
    """Show one tenant, with the quota that the address names marked."""
    key = text_parameter(request, "key")
    facts = read_pods(environment_in(request))
    own = tenant_context(facts, key)
    row: Tenant | None = own["tenant"]
    if row is None:
        return _unregistered(request, facts, key)
    now = timezone.now()
    since = now - timedelta(days=1)
    context = context_of(
        request,
        "tenant",
        key=key,
        here=facts,
        no_data=no_data_words(facts),
        **own,
        **in_context(_charts(key, own["first_quota"])),
        alone=calls_alone(row.environment_id, since, now, key),
        # A limit of a month has no count of a day.
        longer=since - timedelta(hours=1),
    )
    marked = text_parameter(request, "quota")
    shadow = _shadow(context["quotas"], marked)
    context |= {
        "parents": parents(row),
        "members": members(row),
        "marked": marked,
        "shadow": shadow,
        "promotion": what_if_shadow(row.environment_id, key, shadow.name) if shadow else None,
    }
    return render(request, "dashboard/tenant.html", context)


@require_GET
@require_role("viewer")
def effective_values(request: HttpRequest) -> HttpResponse:
    """Show every value that decides about a tenant's requests, and where it comes from."""
    key = text_parameter(request, "key")
    values = [
        (one, field_words(one.name, one.instead_of, one.value))
        for one in effective(environment_in(request), key)
    ]
    context = context_of(request, "tenants", key=key, tenant_key=key, values=values)
    return render(request, "dashboard/effective.html", context)


def _charts(key: str, quota: QuotaRow | None) -> tuple[Chart, ...]:
    if quota is None or quota.per_s is None:
        return of_tenant(key)
    label = f"{quota.name}: {quota.limit:,} per {quota.window}"
    return of_tenant(key, limit=quota.per_s, limit_label=label)


def _shadow(quotas: list[QuotaRow], marked: str) -> QuotaRow | None:
    """Return the shadow quota whose result the page shows: the marked one, otherwise the first.

    A result is a replay of days, so the page shows one.
    """
    shadows = [quota for quota in quotas if quota.shadow]
    return next((quota for quota in shadows if quota.name == marked), shadows[0] if shadows else None)


def _unregistered(request: HttpRequest, facts: PodFacts, key: str) -> HttpResponse:
    """Show the traffic and the limits of a caller without a record; 404 if it can be no tenant."""
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
