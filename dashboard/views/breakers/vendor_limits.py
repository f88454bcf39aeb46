"""*Vendor limits* of a dependency, and the form that declines a suggestion."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.policies.models import Dependency
from controlplane.suggestions.edits import decline_suggestion, present_suggestions
from controlplane.suggestions.models import Suggestion
from dashboard.edit_form import EditForm, Errors, run_edit
from dashboard.live.overview import Live
from dashboard.live.pool import pool_of, verdict_of
from dashboard.live.vendor_limits import title_of, vendor_limits_of
from dashboard.reader import check_owner
from dashboard.views.page import not_found, recent_live, show


class DeclineForm(EditForm):
    missing = "It is not suggested any more."

    def save(self) -> str:
        decline_suggestion(**self.common)
        return "Declined. It comes back when its number changes by 10 %."


def vendor_context(request: HttpRequest, live: Live, name: str, owner: str) -> dict[str, Any]:
    """Values for the fragment ``vendor`` of the page of a dependency."""
    environment = environment_in(request)
    vendor, pool = vendor_limits_of(environment, name), pool_of(live, live.breaker(name))
    return {
        "vendor": vendor,
        "verdict": verdict_of(vendor.learned, pool) if vendor is not None else "",
        "pool": pool,
        "has_content": vendor is None or bool(vendor.rows) or pool.has_content,
        "edits_tenants": may(request.user, "edit_tenant", environment),
        "edits_limits": may(request.user, "edit_breaker_policy", environment, service=owner),
        "edits_environment": may(request.user, "edit_quota", environment),
    }


@require_GET
@require_role("viewer")
def vendor_limits(request: HttpRequest, name: str) -> HttpResponse:
    """The fragment with its values, which the page reads again every 10 s."""
    row = Dependency.objects.filter(environment=environment_in(request), name=name).first()
    if row is None:
        return HttpResponse(status=404)
    live = recent_live(environment_in(request))
    context = {"dependency_name": name, **vendor_context(request, live, name, row.owner)}
    return render(request, "dashboard/vendor_limits.html", context)


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def decline(request: HttpRequest, name: str, limit: str, kind: str) -> HttpResponse:
    """Ask why a suggestion is declined, and decline it."""
    row = Dependency.objects.filter(environment=environment_in(request), name=name).first()
    check_owner(request, "edit_breaker_policy", row.owner if row is not None else "")
    rows = present_suggestions(environment_in(request), name)
    found = next((one for one in rows if (one.limit, one.kind) == (limit, kind)), None)
    if found is None or found.is_declined:
        return not_found(request, "No such suggestion", "It is declined, or not suggested any more.")
    form = DeclineForm(request, dependency=name, limit=limit, kind=kind)
    return run_edit(form, page=partial(_page, suggestion=found), then=reverse("breaker", args=[name]))


def _page(
    request: HttpRequest,
    *,
    suggestion: Suggestion,
    typed: Mapping[str, str] | None = None,
    errors: Errors | None = None,
    status: int = 200,
) -> HttpResponse:
    return show(
        request,
        "decline_suggestion",
        "decline_suggestion.html",
        status=status,
        suggestion=suggestion,
        title=title_of(suggestion),
        typed=typed or {},
        errors=errors or {},
    )
