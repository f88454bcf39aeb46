"""The middleware of pages: the environment in the address, tables as files, edits that need approval."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django_htmx.http import HttpResponseClientRedirect

from controlplane.accounts.permissions import role_of
from controlplane.approvals.proposals import Proposed
from controlplane.page_addresses import home_of, links_into, split_address
from dashboard.environments import environments_of, is_environment
from dashboard.hub import hub
from dashboard.tables.table_files import View, is_file, table_file
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

#: Where a login leads, what answers to refused requests name, and people, who belong to no environment.
_WITHOUT_ENVIRONMENT = frozenset({"/", "/explain", "/people"})


class Pages:
    """Middleware, innermost, after the user is known. Links in a page stay in the environment of the request.

    Views check the role in it. People without one get the same answer whether it exists or not. Views need
    not know that a table can be a file, or that an edit may need approval.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith("/api/"):
            return self.get_response(request)
        environment, rest = split_address(request.path)
        if rest == request.path:
            return self._home_elsewhere(request) or self.get_response(request)
        if rest.startswith("/account/"):
            # Pages of one's login belong to no environment. allauth finds them by the whole path.
            return redirect(rest, preserve_request=True)
        role = role_of(request.user, environment)
        if role and not _exists(environment):
            said = {"heading": "No such environment", "text": f"There is no environment {environment}."}
            return render(request, "404.html", said, status=404)
        request.path_info = rest
        # Pages only: addresses of the API name their environment themselves.
        request.urlconf = "dashboard.urls"
        # People without a role there are told so, and led home.
        with links_into(environment if role else DEFAULT_ENVIRONMENT):
            return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: View, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        if not is_file(request) or not getattr(view, "__module__", "").startswith("dashboard.views."):
            return None
        return table_file(request, lambda asked: view(asked, *args, **kwargs))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Show the browser the change request that an edit by a form became, whichever form it was."""
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

    def _home_elsewhere(self, request: HttpRequest) -> HttpResponseBase | None:
        """Lead a person without a role in production to the same page of another environment.

        A browser keeps the fragment of the address, which is the token of a refusal.
        """
        led = request.method == "GET" and request.path in _WITHOUT_ENVIRONMENT
        found = environments_of(request.user) if led else []
        if not found or DEFAULT_ENVIRONMENT in found:
            return None
        return redirect(home_of(found[0]) + request.path.lstrip("/"))


def _exists(environment: str) -> bool:
    try:
        return is_environment(environment)
    except (OperationalError, InterfaceError):
        return True  # The page reports that Postgres is unavailable.
