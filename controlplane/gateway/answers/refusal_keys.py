"""Gives pods the keys of their refusal tokens, and records which services got one."""

from datetime import UTC, datetime

import msgspec
import structlog
from django.conf import settings
from psycopg import AsyncConnection

from controlplane.gateway.clock import Clock
from controlplane.refusals.keys import DAY_S, day_at, key_of
from controlplane.refusals.tokens import MAX_SERVICES
from fuseboard.contract.sync import SyncRequest

#: Skips a new service if the environment has ``most`` services already. Its tokens cannot be explained then.
_RECORD = """
    INSERT INTO refusals_refusalservice (environment, service, last_on)
    SELECT %(environment)s::text, %(service)s::text, %(day)s::date
    WHERE (SELECT count(*) FROM refusals_refusalservice WHERE environment = %(environment)s::text) < %(most)s
       OR EXISTS (SELECT 1 FROM refusals_refusalservice
                  WHERE environment = %(environment)s::text AND service = %(service)s::text)
    ON CONFLICT (environment, service) DO UPDATE SET last_on = EXCLUDED.last_on
"""
#: Longer than a token is explained: ``FUSEBOARD_REFUSAL_TOKEN_DAYS`` is at most 365.
_KEPT_DAYS = 400
_FORGET = "DELETE FROM refusals_refusalservice WHERE last_on < %(day)s::date - %(kept_days)s::int"

log = structlog.get_logger(__name__)


class RefusalKeys:
    """Adds the key to the answer of a heartbeat. Keeps keys in memory; ``look`` writes the services."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = -1
        #: Environment and service -> the part of an answer, for one day.
        self._parts: dict[tuple[str, str], bytes] = {}
        #: Not recorded yet.
        self._new: dict[tuple[str, str], None] = {}
        self._services_in: dict[str, int] = {}

    def part(self, beat: SyncRequest) -> bytes:
        """The key of the pod's service today; nothing if the environment has too many services."""
        day = day_at(self._clock.wall())
        if day != self._day:
            self._day, self._parts, self._services_in = day, {}, {}
        found = self._parts.get((beat.environment, beat.service))
        return self._make(beat, day) if found is None else found

    def _make(self, beat: SyncRequest, day: int) -> bytes:
        known = self._services_in.get(beat.environment, 0)
        if known >= MAX_SERVICES:
            return b""
        if known == MAX_SERVICES - 1:  # the last one that fits: warn once
            log.warning("gateway.too_many_services", environment=beat.environment, most=MAX_SERVICES)
        self._services_in[beat.environment] = known + 1
        key = key_of(beat.environment, beat.service, day)
        # A fragment of JSON; the caller joins it to the rest of the answer.
        part = b',"refusal_key":' + msgspec.json.encode(key)
        if settings.EXPLAIN_URL:
            part += b',"explain_url":' + msgspec.json.encode(settings.EXPLAIN_URL)
        self._parts[beat.environment, beat.service] = part
        self._new[beat.environment, beat.service] = None
        return part

    async def look(self, connection: AsyncConnection) -> None:
        """Record the services that got a key. Raises one of ``Unreachable``."""
        if not self._new:
            return
        on = datetime.fromtimestamp(self._day * DAY_S, UTC).date()
        for environment, service in list(self._new):
            row = {"environment": environment, "service": service, "day": on, "most": MAX_SERVICES}
            await connection.execute(_RECORD, row)
            del self._new[environment, service]
        await connection.execute(_FORGET, {"day": on, "kept_days": _KEPT_DAYS})
