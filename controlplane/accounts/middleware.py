from collections.abc import Callable
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

from controlplane.accounts import claims


class ClaimsAuthentication:
    """Sets ``request.user`` as Django does, or from the session's claims while Postgres is down."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.user = SimpleLazyObject(lambda: claims.user_of(request))  # type: ignore[assignment]
        request.auser = partial(claims.auser_of, request)
        return self.get_response(request)
