from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.policies.breaker_advice import advice_about
from controlplane.policies.fields import dependency_fields
from controlplane.policies.models import Dependency
from controlplane.policies.older_defaults import differing_rows
from dashboard.views.page import show

#: The API lists more.
_SHOWN = 200


@require_GET
@require_role("viewer")
def defaults(request: HttpRequest) -> HttpResponse:
    """Rows that differ from the current defaults."""
    rows = (
        Dependency.objects.filter(environment=environment_in(request))
        .order_by("name")
        .prefetch_related("vendor_limits")
    )
    return show(
        request,
        "templates",
        "defaults.html",
        differing=differing_rows(environment_in(request), most=_SHOWN),
        most=_SHOWN,
        advice=[(row.name, text) for row in rows for text in advice_about(dependency_fields(row))][:_SHOWN],
    )
