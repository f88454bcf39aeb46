"""Authenticates the caller: a program with a token, or a browser with a session and its CSRF token."""

from functools import partial
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from ninja.errors import AuthorizationError
from ninja.security import HttpBearer, SessionAuth

from controlplane.accounts import tokens
from controlplane.accounts.models import Role
from controlplane.accounts.owned_tokens import TokenEnded, TokenUser, refused
from controlplane.accounts.permissions import check_changes, covered, may, role_of, roles_of, services_of
from controlplane.api.http.rate_limit import Spent, allowances
from controlplane.audit.actor import Actor
from controlplane.editing.edits.revert import Check
from controlplane.editing.edits.revert_rights import service_of_revert
from controlplane.fleet.models import Server
from controlplane.policies.models import Dependency


class TokenAuth(HttpBearer):
    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return _allowed(request, _user_of(request, token), self.action)


class AnyToken(HttpBearer):
    """A valid token with any role in any environment: for what all of them may read.

    ``metrics`` is no such role. Raises ``AuthorizationError``.
    """

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        user = _user_of(request, token)
        if user is None or not roles_of(user):
            return None
        if roles_of(user).isdisjoint(Role.values):
            raise AuthorizationError
        return _within_rate(request, user)


class BrowserAuth(SessionAuth):
    """A session, unless a token was sent: a wrong token must not pass because of a cookie."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action

    def __call__(self, request: HttpRequest) -> Any:
        if "Authorization" in request.headers:
            return None
        return super().__call__(request)

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return _allowed(request, super().authenticate(request, key), self.action)


def needs(action: str) -> list[Any]:
    """Ways to authorize an action; checked before the request's content is looked at."""
    return [TokenAuth(action), BrowserAuth(action)]


def _user_of(request: HttpRequest, token: str) -> TokenUser | None:
    try:
        return tokens.user_of(token)
    except TokenEnded as ended:
        # A program that goes on with a token that ended is limited like any other caller.
        _count(request, f"token:{ended.selector}")
        raise


def _allowed(request: HttpRequest, user: Any, action: str) -> Any:
    if user is None:
        return None
    _within_rate(request, user)
    if not may(user, action, environment_in(request), service=_service_in(request, user, action)):
        if getattr(user, "reduced", False):
            refused.labels("owner_role").inc()
        raise AuthorizationError
    return user


def _within_rate(request: HttpRequest, user: Any) -> Any:
    request.auth = user  # type: ignore[attr-defined]
    _count(request, caller_of(request))
    return user


def _count(request: HttpRequest, caller: str) -> None:
    """Raises ``Spent``."""
    allowance = allowances.take(caller)
    request.allowance = allowance  # type: ignore[attr-defined]
    if not allowance.allowed:
        raise Spent


def environment_in(request: HttpRequest) -> str:
    """The environment in the path; empty for resources of all environments."""
    return str(request.resolver_match.kwargs.get("environment", "")) if request.resolver_match else ""


def _service_in(request: HttpRequest, user: Any, action: str) -> str:
    """The service that owns what the path names; empty without an owner, and where the owner is not asked."""
    environment = environment_in(request)
    if not covered(services_of(user, environment), action):
        return ""
    named = request.resolver_match.kwargs if request.resolver_match else {}
    if "dependency" in named:
        owners = Dependency.objects.filter(environment_id=environment, name=named["dependency"])
        owner = owners.values_list("owner", flat=True).first() or ""
    elif "server" in named:
        pods = Server.objects.filter(environment=environment, name=named["server"])
        owner = pods.values_list("service", flat=True).first() or ""
    else:
        return ""
    request.service = owner  # type: ignore[attr-defined]
    return str(owner)


def check_environment(request: HttpRequest, action: str) -> None:
    """Refuse a caller who may do this for one service only. Raises ``AuthorizationError``."""
    if not may(request.auth, action, environment_in(request)):  # type: ignore[attr-defined]
        raise AuthorizationError


def check_reverts(request: HttpRequest, number: int) -> Check:
    """Refuse a caller who may revert nothing of the revision, and return the check of what it changes.

    Raises ``AuthorizationError``, and the check ``PermissionDenied``.
    """
    user, environment = request.auth, environment_in(request)  # type: ignore[attr-defined]
    try:
        request.service = service_of_revert(user, environment, number)  # type: ignore[attr-defined]
    except PermissionDenied as error:
        raise AuthorizationError from error
    return partial(check_changes, user, environment)


def caller_of(request: HttpRequest) -> str:
    """A distinct text for each token and each person."""
    user = request.auth  # type: ignore[attr-defined]
    selector = getattr(user, "selector", "")
    return f"token:{selector}" if selector else f"user:{user.get_username()}"[:200]


def actor_of(request: HttpRequest) -> Actor:
    user = request.auth  # type: ignore[attr-defined]
    return Actor(
        name=user.get_username(),
        role=role_of(user, environment_in(request), getattr(request, "service", "")),
        origin="api",
        address=request.META.get("REMOTE_ADDR", "") or "",
        person=getattr(user, "owner", ""),
        token=getattr(user, "selector", ""),
    )
