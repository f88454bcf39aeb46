from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import SHOWN, require_role
from controlplane.policies.older_defaults import differing_rows
from dashboard.views.page import show

#: The API lists more.
_SHOWN = 200


@require_GET
@require_role("viewer")
def defaults(request: HttpRequest) -> HttpResponse:
    """Rows that differ from the present defaults."""
    return show(
        request, "templates", "defaults.html", differing=differing_rows(SHOWN, most=_SHOWN), most=_SHOWN
    )
