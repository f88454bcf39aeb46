"""Tasks that run beside the pages: the hub, so that history exists before the first page is opened, and
the backup for a worker that is down.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from controlplane import health
from controlplane.schedules.worker_backup import stand_in
from controlplane.shutdown import stop_tasks
from dashboard.hub import STOP_S, hub

Message = MutableMapping[str, Any]


async def lifespan(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    beside: asyncio.Task[None] | None = None
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            hub.start()
            health.can_draw = hub.can_draw
            beside = asyncio.create_task(stand_in(), name="standing-in")
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await stop_tasks(beside, within_s=STOP_S)
            await hub.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
