"""Gives pods the key of the digests in samples of refusals: random, one per environment and day.

Gateways agree on it through Postgres, and it is deleted when no sample of its day is kept any more. Then
nothing links a digest to a caller.
"""

from datetime import UTC, date, datetime
from secrets import token_bytes

import msgspec
from django.conf import settings
from psycopg import AsyncConnection

from controlplane.gateway.clock import Clock
from controlplane.refusals.keys import DAY_S, day_at
from fuseboard.contract.refusal_samples import DIGEST_KEY_BYTES, DigestKey
from fuseboard.contract.sync import SyncRequest

_MAKE = """
    INSERT INTO refusals_digestkey (environment, "on", key) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING
"""
_READ = 'SELECT key FROM refusals_digestkey WHERE environment = %s AND "on" = %s'


class DigestKeys:
    """The part of an answer with the key. Without a log, and before Postgres has the key, there is none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Environment -> the day of its key, and the part of an answer. The last key serves until a new one
        #: is there.
        self._parts: dict[str, tuple[int, bytes]] = {}
        self._asked: set[str] = set()

    def part(self, beat: SyncRequest) -> bytes:
        self._asked.add(beat.environment)
        known = self._parts.get(beat.environment)
        return b"" if known is None or not settings.REFUSAL_LOG_H else known[1]

    async def look(self, connection: AsyncConnection) -> None:
        """Make or read the keys of today. Raises one of ``Unreachable``."""
        if not settings.REFUSAL_LOG_H:
            return
        today = day_at(self._clock.wall())
        for environment in list(self._asked):
            known = self._parts.get(environment)
            if known is not None and known[0] == today:
                continue
            on = _date(today)
            await connection.execute(_MAKE, (environment, on, token_bytes(DIGEST_KEY_BYTES)))
            row = await (await connection.execute(_READ, (environment, on))).fetchone()
            if row is not None:
                key = msgspec.json.encode(DigestKey(key=bytes(row[0])))
                self._parts[environment] = (today, b',"digest_key":' + key)


def _date(day: int) -> date:
    return datetime.fromtimestamp(day * DAY_S, UTC).date()
