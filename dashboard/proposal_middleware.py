"""Shows the browser the change request that an edit by a form became, whichever form it was."""

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django_htmx.http import HttpResponseClientRedirect

from controlplane.approvals.gate import Proposed
from dashboard.hub import hub


class Proposals:
    """Middleware, innermost, so that views need not know that an edit may need approval."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, Proposed):
            return None
        hub.nudge()
        number = exception.request.pk
        messages.success(
            request, f"Proposed as change request {number}. Nothing is changed until it is approved."
        )
        if getattr(request, "htmx", False):
            return HttpResponseClientRedirect(reverse("request", args=[number]))
        return redirect("request", number=number)
