"""Adds what pods used of language models to the ledger: each part of a pod once, whatever is repeated.

The receipts of its processes, and what was used, change in one transaction. Two gateways that have the same
part wait for each other at its receipt, and the second one finds it counted. The writer has its own task and
connection, so that no heartbeat waits for it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.json import Encoder
from msgspec.structs import astuple
from psycopg import AsyncConnection

from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts
from controlplane.gateway.postgres.keep_trying import KeepTrying
from controlplane.gateway.postgres.refused_rows import write_accepted
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.usage_parts import UsageParts, WaitingPart
from controlplane.gateway.settings import GatewaySettings
from controlplane.ledger.rows import (
    AMOUNTS,
    COUNTED,
    DAYS,
    ERASE,
    HOURS,
    LATELY,
    RECEIPTS,
    TOTALS,
    Table,
    added,
)

#: Between two writes. A pod has its answer with the heartbeat after it.
WRITE_S = 1.0
#: Rows of one transaction, about.
ROWS_AT_ONCE = 3_000
#: ``controlplane.ledger.models.Whose``.
_SERVICE, _TENANT = 1, 2

_Sums = dict[tuple[Any, ...], list[int]]

_encode = Encoder().encode


class UsageWriter:
    def __init__(
        self, fleets: dict[str, Fleet], settings: GatewaySettings, counts: Counts, clock: Clock
    ) -> None:
        self._fleets, self._settings, self._counts, self._clock = fleets, settings, counts, clock
        self._postgres = KeepTrying(
            "usage",
            failed="gateway.usage_failed",
            recovered="gateway.usage_recovered",
            count_failure=self._count_failure,
            count_refusal=partial(self._refused, ""),
        )

    async def run(self) -> None:
        """Write what came in the last second, forever."""
        while True:
            await asyncio.sleep(WRITE_S)
            await self.write()

    async def write(self) -> bool:
        """Write all parts that wait now. Returns whether Postgres took them."""
        waiting = [(name, fleet.sums.usage) for name, fleet in self._fleets.items() if fleet.sums.usage]
        for environment, parts in waiting:
            if not await self._postgres.attempt(self._write_all(environment, parts)):
                return False
        return True

    async def disconnect(self) -> None:
        await self._postgres.disconnect()

    async def _write_all(self, environment: str, parts: UsageParts) -> None:
        """Raises one of ``Unreachable``; what was not written waits for the next time."""
        left = len(parts)
        while left > 0 and (some := parts.some(ROWS_AT_ONCE)):
            await self._write(environment, parts, some)
            left -= len(some)

    async def _write(self, environment: str, waiting: UsageParts, some: Sequence[WaitingPart]) -> None:
        connection = await self._postgres.connection()

        async def write(parts: Sequence[WaitingPart]) -> None:
            async with asyncio.timeout(self._settings.flush_timeout_s):
                await write_parts(connection, environment, parts)
            waiting.written(parts)

        def refused(part: WaitingPart, error: BaseException) -> None:
            self._refused(environment, error)
            waiting.written([part])

        await write_accepted(write, some, refused)

    def _count_failure(self) -> None:
        self._counts.flush_failures += 1

    def _refused(self, environment: str, error: BaseException) -> None:
        now = self._clock.monotonic()
        self._counts.refused_writes.add("usage of models", error, now, environment=environment)


async def write_parts(connection: AsyncConnection, environment: str, parts: Sequence[WaitingPart]) -> None:
    """Add the parts that the ledger does not have, and none of the others. Raises one of ``Unreachable``."""
    async with connection.transaction():
        # Sorted everywhere, so that two gateways never wait for each other's rows.
        processes = [
            {"server": server, "boot": boot} for server, boot in sorted({part.process for part in parts})
        ]
        found = await connection.execute(RECEIPTS, (environment, _text(processes)))
        known = {(server, boot): number for server, boot, number in await found.fetchall()}
        new = [part for part in parts if part.number > known[part.process]]
        if not new:
            return
        # The row of a day is one for all gateways, so it is locked last, and for the shortest time.
        for table, sums in zip((HOURS, DAYS, TOTALS), _sums(environment, new), strict=True):
            await connection.execute(table.add, (_rows(table, sums),))
        last: dict[tuple[str, str], int] = {}
        for part in new:
            last[part.process] = max(part.number, last.get(part.process, 0))
        numbers = [
            {"server": server, "boot": boot, "number": number} for (server, boot), number in last.items()
        ]
        await connection.execute(COUNTED, (_text(numbers), environment))


async def erase_again(connection: AsyncConnection, environment: str, tenants: Sequence[int]) -> None:
    """Erase tenants that a write brought back while they were erased.

    Postgres looks for their names: there may be 100,000 tenants, and heartbeats need the event loop.
    """
    for (name,) in await (await connection.execute(LATELY, (environment, list(tenants)))).fetchall():
        for statement in ERASE:
            await connection.execute(statement, (environment, name))


def _sums(environment: str, parts: Iterable[WaitingPart]) -> tuple[_Sums, _Sums, _Sums]:
    """The hours, the days and the totals to add: keys in the order of the columns of their tables."""
    hours: _Sums = {}
    days: _Sums = {}
    totals: _Sums = {}
    for part in parts:
        at = datetime.fromtimestamp(part.hour, UTC)
        for row in part.rows:
            values = astuple(row)
            what, amounts = (row.model, row.dependency), values[3:]
            for sums, key in (
                (hours, (environment, _SERVICE, at.isoformat(), part.service, *what)),
                (hours, (environment, _TENANT, at.isoformat(), row.tenant, *what)),
                (days, (environment, at.date().isoformat(), row.tenant, *what)),
                (totals, (environment, at.date().isoformat())),
            ):
                before = sums.get(key)
                sums[key] = list(amounts) if before is None else added(before, amounts)
    return hours, days, totals


def _rows(table: Table, sums: _Sums) -> str:
    names = (*table.names, *AMOUNTS)
    return _text([dict(zip(names, (*key, *sums[key]), strict=True)) for key in sorted(sums)])


def _text(rows: list[dict[str, Any]]) -> str:
    return _encode(rows).decode()
