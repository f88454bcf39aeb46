"""Decides who may open the WebSocket."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from channels.auth import AuthMiddleware
from channels.security.websocket import OriginValidator, WebsocketDenier
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.base import SessionBase
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.accounts import claims, logins

#: Checks are gathered for this time.
GATHER_S = 0.02


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
    checks = _checks.setdefault(asyncio.get_running_loop(), _Checks())
    try:
        user = await checks.user_of(scope["session"])
    except (OperationalError, InterfaceError) as error:
        return claims.believed(scope["session"], error)
    # A page that is open for long sends no request that would renew the claims of its cookie.
    if getattr(user, "is_authenticated", False):
        claims.renew(scope["session"], user)
    return user


class _Checks:
    """Answers the checks that sockets make at about the same time with one connection to Postgres.

    A turn of the thread connects anew. With one turn for each socket, a few hundred sockets kept the
    process busy with connecting.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[SessionBase, asyncio.Future[Any]]] = []
        self._answering: asyncio.Task[None] | None = None

    async def user_of(self, session: SessionBase) -> Any:
        """The user. Raises ``OperationalError`` while Postgres does not answer."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((session, answer))
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer(), name="socket-logins")
        return await answer

    async def _answer(self) -> None:
        asked: list[tuple[SessionBase, asyncio.Future[Any]]] = []
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_S)
                asked, self._waiting = self._waiting, []
                found = await sync_to_async(_users)([session for session, _ in asked])
                for (_, answer), user in zip(asked, found, strict=True):
                    if answer.done():
                        continue  # the socket has left
                    if isinstance(user, Exception):
                        answer.set_exception(user)
                    else:
                        answer.set_result(user)
        finally:
            # Only at the end of the process: no socket waits for ever.
            for _, answer in (*asked, *self._waiting):
                answer.cancel()
            self._answering, self._waiting = None, []


_checks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Checks] = WeakKeyDictionary()


def _users(sessions: Sequence[SessionBase]) -> list[Any]:
    """The user of each session, or the error of its check. Once Postgres fails, the rest share the error."""
    found: list[Any] = []
    close_old_connections()
    try:
        for session in sessions:
            try:
                found.append(_user(session))
            except (OperationalError, InterfaceError) as error:
                return [*found, *[error] * (len(sessions) - len(found))]
            except Exception as error:  # of one session: the others get their answer
                found.append(error)
    finally:
        close_old_connections()
    return found


def _user(session: SessionBase) -> Any:
    user = logins.admitted(session, get_user(SimpleNamespace(session=session)))  # type: ignore[arg-type]
    return AnonymousUser() if user is None else user
