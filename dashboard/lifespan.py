"""Starts the hub with the web process, so that the history is there before the first page is."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from dashboard.hub import hub

Message = MutableMapping[str, Any]


async def lifespan(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            hub.start()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await hub.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
