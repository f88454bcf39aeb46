"""Who may open the WebSocket."""

from typing import Any
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from channels.auth import AuthMiddleware, get_user
from channels.security.websocket import OriginValidator, WebsocketDenier
from django.contrib.auth.models import AnonymousUser
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.accounts import claims, logins


class ListedOrigins(OriginValidator):
    """Accept only pages of the listed origins, compared with scheme and port.

    The list has no ``*``: a page on another port of this host is another page.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        for name, value in scope.get("headers", []):
            if name == b"origin" and not _readable(value):
                # OriginValidator raises on these, which gives a stack trace instead of a refusal.
                return await WebsocketDenier()(scope, receive, send)
        return await super().__call__(scope, receive, send)


def _readable(origin: bytes) -> bool:
    try:
        return urlsplit(origin.decode("ascii")).port != 0
    except ValueError:
        return False


class ClaimsAuthMiddleware(AuthMiddleware):
    """Sets ``scope["user"]`` as channels does, or from the session's claims while Postgres is down."""

    async def resolve_scope(self, scope: Any) -> None:
        scope["user"]._wrapped = await user_of(scope)


async def user_of(scope: Any) -> Any:
    """The user of the socket's session now, read again, because the login may have ended."""
    session = scope["session"]
    try:
        user = await _admitted(session, await get_user(scope))
    except (OperationalError, InterfaceError) as error:
        return claims.believed(session, error)
    return AnonymousUser() if user is None else user


@sync_to_async
def _admitted(session: Any, user: Any) -> Any:
    try:
        return logins.admitted(session, user)
    finally:
        close_old_connections()
