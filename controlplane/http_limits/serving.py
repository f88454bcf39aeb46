"""How uvicorn serves an application within limits."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from controlplane.http_limits.connection import CONNECTION, LimitedConnection
from controlplane.http_limits.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


class CountAnswers:
    """ASGI middleware, around all others, that tells a connection when its requests are answered."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).pop(CONNECTION, None)
        if connection is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except BaseException:
            # uvicorn answers with 500 first.
            asyncio.get_running_loop().call_soon(connection.answered)
            raise
        connection.answered()


def _ignore(status: int) -> None:
    """Where nothing counts refusals."""


def limited(app: Application, limits: Limits, *, refused: Callable[[int], None] = _ignore) -> dict[str, Any]:
    """The options of `uvicorn.Config` that serve an application within limits.

    Without `limit_concurrency`: uvicorn answers for the application then, and the count is wrong.
    """

    class Limited(LimitedConnection):
        def __init__(self, **uvicorn: Any) -> None:
            super().__init__(limits, refused, **uvicorn)

    return {"app": CountAnswers(app), "http": Limited}
