"""The page of one tenant, and its effective settings."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.policies.effective import effective
from controlplane.policies.models import Tenant
from controlplane.status.read_facts import read_pods
from controlplane.usage.what_if import what_if_shadow
from dashboard.live.charts import in_context, of_tenant
from dashboard.live.known import no_data_words
from dashboard.live.tenant import QuotaRow, members, parents, tenant_context
from dashboard.views.page import context_of, text_parameter
from dashboard.views.tenants.unregistered import unregistered_page
from dashboard.words.change_words import field_words


@require_GET
@require_role("viewer")
def tenant(request: HttpRequest) -> HttpResponse:
    """Show one tenant, with the quota that the address names marked."""
    key = text_parameter(request, "key")
    facts = read_pods(environment_in(request))
    own = tenant_context(facts, key)
    row: Tenant | None = own["tenant"]
    if row is None:
        return unregistered_page(request, key)
    context = context_of(
        request,
        "tenant",
        key=key,
        here=facts,
        no_data=no_data_words(facts),
        **own,
        **in_context(of_tenant(key)),
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


def _shadow(quotas: list[QuotaRow], marked: str) -> QuotaRow | None:
    """Return the shadow quota whose result the page shows: the marked one, otherwise the first.

    A result is a replay of days, so the page shows one.
    """
    shadows = [quota for quota in quotas if quota.shadow]
    return next((quota for quota in shadows if quota.name == marked), shadows[0] if shadows else None)
