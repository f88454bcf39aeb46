"""Decides from the head of a request alone whether its large body is read.

Django writes a large body to disk before it asks who sent it, so anybody could fill the disk.
"""

from collections.abc import Collection
from io import BytesIO
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.handlers.asgi import ASGIRequest
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.accounts import claims, tokens
from controlplane.accounts.owned_tokens import TokenEnded
from controlplane.accounts.permissions import may
from controlplane.page_addresses import split_address

#: Large bodies that one process reads at the same time, from all callers together.
MAX_AT_ONCE = 2
#: A caller that was refused because of the limits may try again after this.
RETRY_S = 5

LOG_IN = (
    401,
    "A body of more than 1 MiB needs a valid token or session. Log in, or send Authorization: Bearer with a"
    " valid token, and send the file again.",
)
FORBIDDEN = (
    403,
    "Your role may not send a file of more than 1 MiB here: that needs the right to edit quotas.",
)
YOUR_OTHER = (429, "Another large file of yours is still being processed. Send this one after the answer.")
FULL = (503, "Other people's large files are still being processed. Send this one again in a few seconds.")
DATABASE_DOWN = (
    503,
    "Postgres is down, so your right to send the file cannot be checked. Send it again later.",
)

Refused = tuple[int, str]


class LargeBodies:
    """Callers whose large body this process reads now."""

    def __init__(self) -> None:
        self._callers: set[str] = set()

    async def admit(self, scope: Any) -> str | Refused:
        """The caller, who must be passed to ``done``; or why the body is not read."""
        try:
            caller = await _caller_of(scope)
        except (OperationalError, InterfaceError):
            return DATABASE_DOWN
        if not isinstance(caller, str):
            return caller
        # No await from here on: two requests of one caller cannot both pass.
        return _busy(caller, self._callers) or self._add(caller)

    def _add(self, caller: str) -> str:
        self._callers.add(caller)
        return caller

    def done(self, caller: str) -> None:
        self._callers.discard(caller)


def _busy(caller: str, callers: Collection[str]) -> Refused | None:
    if caller in callers:
        return YOUR_OTHER
    return FULL if len(callers) >= MAX_AT_ONCE else None


@sync_to_async
def _caller_of(scope: Any) -> str | Refused:
    try:
        request = ASGIRequest(scope, BytesIO())
        user = _user_of(request)
    except TokenEnded as ended:
        return 401, str(ended)
    finally:
        close_old_connections()
    if user is None or not user.is_authenticated:
        return LOG_IN
    if not may(user, "edit_quota", _environment_in(scope["path"])):
        return FORBIDDEN
    selector = getattr(user, "selector", "")
    return f"token:{selector}" if selector else f"user:{user.get_username()}"


def _user_of(request: ASGIRequest) -> Any:
    """The API and the pages do the same: the cookie does not count when there is a token."""
    authorization = request.headers.get("Authorization", "")
    if authorization:
        scheme, _, token = authorization.partition(" ")
        return tokens.user_of(token) if scheme.lower() == "bearer" else None
    cookie = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if not cookie:
        return None
    # It is read and never saved: the view that gets the body opens it again.
    request.session = SessionStore(cookie)
    return claims.user_of(request)


def _environment_in(path: str) -> str:
    return path.split("/")[3] if path.startswith("/api/v1/") else split_address(path)[0]
