"""Who somebody is while Postgres cannot be asked.

Whenever a session's user was read from Postgres, name and role are noted in the session, which
is a signed cookie, for ten minutes. While Postgres is down they are believed. The price: a
removed user or role lives on for that long, and only while Postgres is down.
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

from controlplane.accounts.permissions import role_of

log = structlog.get_logger(__name__)

KEY = "claims"
BELIEVED_S = 600
#: Renewed this often, so that not every answer sets a cookie.
RENEWED_S = 60


@dataclass(frozen=True)
class ClaimsUser:
    """A user known by the session's claims alone: Postgres did not answer."""

    username: str
    role: str
    pk: int | None = None
    is_authenticated: bool = field(default=True, init=False)
    is_anonymous: bool = field(default=False, init=False)
    is_active: bool = field(default=True, init=False)
    is_superuser: bool = field(default=False, init=False)
    #: Tells pages to say so.
    from_claims: bool = field(default=True, init=False)

    def __str__(self) -> str:
        return self.username

    def get_username(self) -> str:
        return self.username


def user_of(request: HttpRequest) -> Any:
    """The request's user; a ``ClaimsUser`` while Postgres is down. Asked once per request."""
    if not hasattr(request, "_claims_user"):
        try:
            user = auth.get_user(request)
        except (OperationalError, InterfaceError) as error:
            user = believed(request.session, error)  # type: ignore[assignment]
        else:
            renew(request.session, user)
        request._claims_user = user  # type: ignore[attr-defined]
    return request._claims_user  # type: ignore[attr-defined]


auser_of = sync_to_async(user_of)


def renew(session: SessionBase, user: Any) -> None:
    """Note who this is, unless that was done within the last minute."""
    role = role_of(user)
    if not role:
        return
    claims, now = session.get(KEY), time.time()
    mine = claims is not None and (claims["name"], claims["role"]) == (user.get_username(), role)
    if claims is None or not mine or claims["until"] - now < BELIEVED_S - RENEWED_S:
        session[KEY] = {"name": user.get_username(), "role": role, "until": int(now) + BELIEVED_S}


def believed(session: SessionBase, error: Exception) -> "ClaimsUser | AnonymousUser":
    """Whom the claims name, while they last."""
    claims = session.get(KEY)
    if claims is None or claims["until"] < time.time():
        return AnonymousUser()
    log.warning("session.claims_believed", user=claims["name"], error=str(error).splitlines()[0])
    return ClaimsUser(username=claims["name"], role=claims["role"])
