"""Finds the page that an address names in its environment."""

from collections.abc import Callable

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render

from controlplane.accounts.permissions import role_of
from controlplane.page_addresses import home_of, links_into, split_address
from dashboard.environments import environments_of, is_environment
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

#: Where a login leads, what answers to refused requests name, and people, who belong to no environment.
_WITHOUT_ENVIRONMENT = frozenset({"/", "/explain", "/people"})


class EnvironmentOfAddress:
    """Middleware, after the user is known. Links in the response stay in the environment of the request.

    Views check the role in it. People without one get the same answer whether it exists or not.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
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
