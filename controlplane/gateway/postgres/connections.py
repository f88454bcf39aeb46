"""The gateway's connections: separate from Django's, and with a timeout for everything."""

import asyncio
import random
from contextlib import suppress

from django.conf import settings
from psycopg import AsyncConnection, Error
from psycopg.conninfo import conninfo_to_dict

from controlplane.postgres import conninfo

#: Defaults that DATABASE_URL can replace.
CONNECT_TIMEOUT_S = 2
STATEMENT_TIMEOUT_MS = 3_000

#: Errors of an outage of Postgres. The connection is dropped, and a new one is tried.
Unreachable = (Error, OSError, TimeoutError)


class Backoff:
    """Pauses with jitter that double up to a maximum."""

    def __init__(self, *, first_s: float = 0.1, most_s: float = 5.0) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._next_s = first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    async def pause(self) -> None:
        pause_s, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))


async def connect(purpose: str, *, direct: bool = False) -> AsyncConnection:
    """A new connection in autocommit; ``direct`` for LISTEN. Raises one of ``Unreachable``."""
    where = conninfo(f"gateway-{purpose}", direct=direct, statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    # Each host has its own timeout.
    hosts = str(conninfo_to_dict(where).get("host", "")).count(",") + 1
    async with asyncio.timeout(CONNECT_TIMEOUT_S * hosts + 1):
        # A statement that is prepared belongs to a session.
        prepare = None if settings.DATABASE_POOLED else 5
        return await AsyncConnection.connect(where, autocommit=True, prepare_threshold=prepare)


async def close(connection: AsyncConnection | None) -> None:
    """Close a connection, whatever its state."""
    if connection is not None:
        with suppress(*Unreachable):
            await connection.close()
