"""The busiest callers: keys by rate, how pods serve them, and callers that are refused most, by digest."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.refusals.callers import refused_callers
from dashboard.views.page import show

#: Refusals of this time are read for the callers.
_LAST = timedelta(hours=1)


@require_GET
@require_role("viewer")
def hot_keys(request: HttpRequest) -> HttpResponse:
    end = timezone.now()
    return show(
        request,
        "hot_keys",
        "hot_keys.html",
        callers=refused_callers(environment_in(request), end - _LAST, end),
        may_erase=may(request.user, "erase", environment_in(request)),
    )
