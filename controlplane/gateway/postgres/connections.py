"""The gateway's connections: separate from Django's, and with a timeout for everything."""

import asyncio
import random
from contextlib import suppress
from typing import Any

from django.conf import settings
from psycopg import AsyncConnection, Error
from psycopg.conninfo import make_conninfo

#: Options of a Django database that are for Django, not for libpq.
_DJANGO_OPTIONS = {"pool", "server_side_binding", "isolation_level", "assume_role", "options"}

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


def conninfo(purpose: str) -> str:
    """How libpq reaches Django's default database."""
    database: dict[str, Any] = settings.DATABASES["default"]
    options = {name: v for name, v in database.get("OPTIONS", {}).items() if name not in _DJANGO_OPTIONS}
    named = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    options |= {name: database[key] for name, key in named.items() if database.get(key)}
    options |= {
        "application_name": f"fuseboard-gateway-{purpose}",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": 5_000,
        # A connection that is cut silently is noticed within about 10 s, idle or not.
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS}",
    }
    return make_conninfo("", **options)


async def connect(purpose: str) -> AsyncConnection:
    """A new connection in autocommit. Raises one of ``Unreachable``."""
    async with asyncio.timeout(CONNECT_TIMEOUT_S + 1):
        return await AsyncConnection.connect(conninfo(purpose), autocommit=True)


async def close(connection: AsyncConnection | None) -> None:
    """Close a connection, whatever its state."""
    if connection is not None:
        with suppress(*Unreachable):
            await connection.close()
