"""An edit by a form that became a change request: the browser is shown that, whichever form it was."""

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
    """Middleware, innermost: views need not know that edits can wait."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, Proposed):
            return None
        hub.nudge()
        number = exception.request.pk
        messages.success(request, f"Proposed as request {number}. Nothing is changed until it is approved.")
        if getattr(request, "htmx", False):
            return HttpResponseClientRedirect(reverse("request", args=[number]))
        return redirect("request", number=number)
