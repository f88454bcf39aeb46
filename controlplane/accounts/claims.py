"""The user of a session while Postgres is down.

Whenever a session's user is read from Postgres, name and roles are stored in the session, which is
a signed cookie, for ten minutes. While Postgres is down these claims are trusted. The cost: a
removed user or role stays valid for that long, and only while Postgres is down.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from asgiref.sync import sync_to_async
from django.contrib import auth
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.base import SessionBase
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest

from controlplane.accounts import logins
from controlplane.accounts.permissions import role_of

log = structlog.get_logger(__name__)

KEY = "claims"
BELIEVED_S = 600
#: Renewed at this interval, so that not every response sets a cookie.
RENEWED_S = 60


@dataclass(frozen=True)
class ClaimsUser:
    """A user known by the session's claims alone, because Postgres did not answer."""

    username: str
    role: str
    environment_roles: dict[str, str] = field(default_factory=dict)
    service_roles: dict[str, dict[str, str]] = field(default_factory=dict)
    pk: int | None = None
    is_authenticated: bool = field(default=True, init=False)
    is_anonymous: bool = field(default=False, init=False)
    is_active: bool = field(default=True, init=False)
    is_superuser: bool = field(default=False, init=False)
    #: Pages show a notice when this is set.
    from_claims: bool = field(default=True, init=False)

    def __str__(self) -> str:
        return self.username

    def get_username(self) -> str:
        return self.username


def user_of(request: HttpRequest) -> Any:
    """The request's user; a ``ClaimsUser`` while Postgres is down. Read once per request."""
    if not hasattr(request, "_claims_user"):
        request._claims_user = _user_of(request)  # type: ignore[attr-defined]
    return request._claims_user  # type: ignore[attr-defined]


auser_of = sync_to_async(user_of)


def _user_of(request: HttpRequest) -> Any:
    session = request.session
    try:
        user = logins.admitted(session, auth.get_user(request))
    except (OperationalError, InterfaceError) as error:
        return believed(session, error)
    if user is None:
        session.flush()
        return AnonymousUser()
    renew(session, user)
    return user


def renew(session: SessionBase, user: Any) -> None:
    """Store the claims in the session, unless they are less than a minute old."""
    if getattr(user, "lacks_second_factor", False):
        # These claims are older than the role, or than its need for a second factor.
        session.pop(KEY, None)
        return
    role = role_of(user)
    elsewhere = getattr(user, "environment_roles", None) or {}
    own = getattr(user, "service_roles", None) or {}
    if not role and not any(elsewhere.values()):
        return
    claims, now = session.get(KEY), time.time()
    mine = {"name": user.get_username(), "role": role, "roles": elsewhere, "services": own}
    same = claims is not None and all(claims.get(name) == value for name, value in mine.items())
    if claims is None or not same or claims["until"] - now < BELIEVED_S - RENEWED_S:
        session[KEY] = {**mine, "until": int(now) + BELIEVED_S}


def believed(session: SessionBase, error: Exception) -> "ClaimsUser | AnonymousUser":
    """The user that the claims name, while they last."""
    claims = session.get(KEY)
    if claims is None or claims["until"] < time.time() or logins.is_forgotten(session):
        return AnonymousUser()
    log.warning("session.claims_believed", user=claims["name"], error=str(error).splitlines()[0])
    return ClaimsUser(
        username=claims["name"],
        role=claims["role"],
        environment_roles=claims.get("roles", {}),
        service_roles=claims.get("services", {}),
    )
