"""Who may open the WebSocket."""

from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddleware, get_user
from channels.security.websocket import OriginValidator, WebsocketDenier
from django.db import InterfaceError, OperationalError

from controlplane.accounts import claims


class ListedOrigins(OriginValidator):
    """Only pages served at the listed origins, compared with scheme and port.

    Listed exactly, without ``*``: a page on another port of this host is another page.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        for name, value in scope.get("headers", []):
            if name == b"origin" and not _readable(value):
                # OriginValidator raises on these, which ends in a stack trace instead of a refusal.
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
        try:
            user: Any = await get_user(scope)
        except (OperationalError, InterfaceError) as error:
            user = claims.believed(scope["session"], error)
        scope["user"]._wrapped = user
