"""Notices from Postgres that something changed, so that a page displays it within a quarter of a second."""

import asyncio
import json
from collections.abc import Callable

import psycopg
import structlog

from controlplane import notify_channels
from controlplane.accounts import logins
from controlplane.postgres import conninfo

log = structlog.get_logger(__name__)

CHANNELS = (notify_channels.FLEET, notify_channels.CONFIG, notify_channels.LOGINS)
_RETRY_S = 2.0


async def listen(changed: Callable[[], None], doubt: Callable[[], None]) -> None:
    """Call ``changed`` at every notice, for ever. Without Postgres the hub still ticks by the clock.

    ``doubt`` is called when a login has ended or a role has changed.
    """
    while True:
        try:
            where = conninfo("hub", direct=True)
            async with await psycopg.AsyncConnection.connect(where, autocommit=True) as connection:
                for channel in CHANNELS:
                    await connection.execute(f"LISTEN {channel}")
                changed()
                doubt()
                async for notice in connection.notifies():
                    if notice.channel == notify_channels.LOGINS:
                        logins.forget(json.loads(notice.payload).get("logins", []))
                        doubt()
                    changed()
        except psycopg.OperationalError as error:
            log.warning("hub.listen_lost", error=str(error).splitlines()[0])
        await asyncio.sleep(_RETRY_S)
