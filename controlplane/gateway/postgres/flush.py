"""Writes changes from memory to Postgres: one statement per batch, then one notification.

While Postgres is down, nothing piles up: what is not written yet is a set of pods, and each
row is written as the pod is then, not as it was.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

import structlog
from psycopg import AsyncConnection
from psycopg.errors import QueryCanceled
from psycopg.types.json import Jsonb

from controlplane import notify_channels
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts, RefusedValue
from controlplane.gateway.postgres.keep_trying import KeepTrying
from controlplane.gateway.postgres.portions import Portions, key_of
from controlplane.gateway.postgres.refused_rows import write_accepted
from controlplane.gateway.postgres.upsert import UPSERT, encode_rows
from controlplane.gateway.servers.figures import figures_of
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.rows import Row, row_of
from controlplane.gateway.settings import GatewaySettings

#: Pods named in one notification. A reader looks at all pods if it needs more.
MAX_NAMED = 50

#: How long an urgent change waits for others in the same batch.
GATHER_S = 0.03

#: A pod without news gets one row per heartbeat: this part of its interval lies between two rows.
CALM_SHARE = 0.6

#: Pods of one batch. Rows that are prepared and not written in time are prepared again: without this bound,
#: a Postgres that is slower than the fleet made each batch longer than the one before it.
MAX_AT_ONCE = 2_000

#: Rows prepared before other tasks run.
_CHUNK = 50

#: After this time, no further statement with rows begins before the next figures are written. Other gateways
#: take over the pods of one that writes no figures for 5 s.
_ROWS_S = 1.0

_FIGURES = """
    INSERT INTO fleet_figures (gateway, environment, at, document) VALUES (%s, %s, now(), %s)
    ON CONFLICT (gateway, environment) DO UPDATE SET at = EXCLUDED.at, document = EXCLUDED.document
"""

_FAILED_CALLS = """
    INSERT INTO fleet_failedcalls (gateway, environment, dependency, at, document)
    VALUES (%s, %s, %s, now(), %s)
    ON CONFLICT (environment, dependency, gateway)
    DO UPDATE SET at = EXCLUDED.at, document = EXCLUDED.document
"""

_DESCRIPTORS = """
    INSERT INTO fleet_descriptorfigures (gateway, environment, domain, at, document)
    VALUES (%s, %s, %s, now(), %s)
    ON CONFLICT (environment, domain, gateway)
    DO UPDATE SET at = EXCLUDED.at, document = EXCLUDED.document
"""

#: Rows that nothing reads any more: pods that left long ago, and gateways that restarted under another name.
_FORGET = (
    "DELETE FROM fleet_server WHERE state = 'gone' AND last_seen_at < now() - interval '1 day'",
    "DELETE FROM fleet_event WHERE at < now() - interval '30 days'",
    "DELETE FROM fleet_gatewayorder WHERE at < now() - interval '1 day' AND kind <> 'erase'",
    # Pods may report a tenant that was erased for a week.
    "DELETE FROM fleet_gatewayorder WHERE at < now() - interval '8 days'",
    "DELETE FROM fleet_figures WHERE at < now() - interval '1 day'",
    "DELETE FROM fleet_failedcalls WHERE at < now() - interval '1 day'",
    "DELETE FROM fleet_descriptorfigures WHERE at < now() - interval '1 hour'",
)
FORGET_EVERY_S = 600.0

log = structlog.get_logger(__name__)


Document: TypeAlias = tuple[str, dict[str, Any]]


class Documents(Protocol):
    """Documents that are written whole, each in a row with its name."""

    def due(self, now: float) -> list[Document]:
        """Some documents with news; ``now`` is monotonic."""
        ...

    def put_back(self, names: list[str]) -> None:
        """These were not written."""
        ...

    def forget(self, name: str) -> None:
        """Postgres refuses this one."""
        ...


class Flusher:
    """Writes what is dirty once per second, and urgent changes at once."""

    def __init__(
        self,
        fleets: dict[str, Fleet],
        settings: GatewaySettings,
        counts: Counts,
        clock: Clock,
        configured: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """``configured`` are the environments that the gateway serves, also those without pods."""
        self._fleets = fleets
        self._configured = configured
        self._clock = clock
        self._settings = settings
        self._counts = counts
        self._urgent = asyncio.Event()
        self._postgres = KeepTrying(
            "flush",
            failed="gateway.flush_failed",
            recovered="gateway.flush_recovered",
            count_failure=self._count_failure,
            count_refusal=partial(self._refused, "batch"),
        )
        self._forget_at = 0.0
        self._portions = Portions(clock)

    def hurry(self) -> None:
        self._urgent.set()

    async def run(self) -> None:
        """Write, then wait for the next second or for an urgent change, forever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            with_figures = loop.time() >= due
            if with_figures:
                due = max(due + self._settings.flush_s, loop.time())
            await self._try_to_write(with_figures=with_figures)
            await self._wait(due - loop.time())

    async def finish(self) -> None:
        """Write a last batch and disconnect."""
        await self._try_to_write(with_figures=False, every=True)
        await self.disconnect()

    async def disconnect(self) -> None:
        await self._postgres.disconnect()

    async def write(self, *, with_figures: bool, every: bool = False) -> None:
        """Write one batch; with ``every``, also pods that were written a moment ago.

        Raises one of ``Unreachable``; what was not written stays dirty.
        """
        batch = self._take(every=every)
        try:
            rows = await self._rows(batch)
            if not rows and not with_figures:
                return
            if with_figures:
                # First: rows can take long.
                async with asyncio.timeout(self._settings.flush_timeout_s):
                    await self._write_figures(await self._postgres.connection())
            written = await self._write_rows(batch, rows, within_s=float("inf") if every else _ROWS_S)
            async with asyncio.timeout(self._settings.flush_timeout_s):
                await self._notify(await self._postgres.connection(), batch, with_figures=with_figures)
        except BaseException:
            for dirty in batch:
                dirty.put_back()
            raise
        for dirty in batch:
            dirty.put_back_rows()
        self._counts.flushes += 1
        self._counts.rows_flushed += written

    def _take(self, *, every: bool) -> list["_Dirty"]:
        self._urgent.clear()
        now = float("inf") if every else self._clock.monotonic()
        most = None if every else MAX_AT_ONCE
        batch = [_Dirty(fleet, now, most) for fleet in self._fleets.values()]
        if any(dirty.left for dirty in batch):
            self._urgent.set()
        return batch

    async def _rows(self, batch: list["_Dirty"]) -> list[Row]:
        rows: list[Row] = []
        for dirty in batch:
            for start in range(0, len(dirty.servers), _CHUNK):
                chunk = dirty.servers[start : start + _CHUNK]
                dirty.fleet.refresh_rates(chunk)
                rows.extend([row_of(server, self._settings.gateway) for server in chunk])
                await asyncio.sleep(0)
        # Always in the same order, so that two gateways never wait for each other's rows.
        return sorted(rows, key=attrgetter("environment", "name"))

    async def _write_rows(self, batch: list["_Dirty"], rows: list[Row], *, within_s: float) -> int:
        """Write what there is time for; return the number of rows. A timeout ends it, but is no outage."""
        loop = asyncio.get_running_loop()
        until, written = loop.time() + within_s, 0
        servers = {(d.fleet.environment, s.beat.server): s for d in batch for s in d.servers}
        for found in self._portions.divide(rows):
            if loop.time() > until:
                self._urgent.set()
                break
            # Some may have been forgotten while the others were written.
            part = [row for row in found if not servers[key_of(row)].handed_over]
            if not part:
                continue
            for row in part:
                servers[key_of(row)].may_have_row = True
            if not await self._write_in_time(part):
                self._urgent.set()
                break
            self._portions.wrote(part)
            self._written(batch, part)
            written += len(part)
        return written

    async def _write_in_time(self, rows: list[Row]) -> bool:
        """Write the rows of one statement; return whether that was possible in time."""
        connection = await self._postgres.connection()
        try:
            async with asyncio.timeout(self._settings.flush_timeout_s):
                await self._upsert(connection, rows)
        except (TimeoutError, QueryCanceled) as error:
            self._portions.timed_out(rows)
            self._count_failure()
            log.warning(
                "gateway.rows_slow", rows=len(rows), first=rows[0].name, last=rows[-1].name, error=str(error)
            )
            # The cause of the timeout is unknown. If Postgres is down, the next statement shows it.
            await self._postgres.disconnect()
            return False
        return True

    def _written(self, batch: list["_Dirty"], rows: list[Row]) -> None:
        """Record what is written: a whole fleet of new pods is written in steps, even if Postgres is slow."""
        now, by_fleet = self._clock.monotonic(), {dirty.fleet.environment: dirty for dirty in batch}
        for row in rows:
            by_fleet[row.environment].written(row.name, now)

    async def _write_figures(self, connection: AsyncConnection) -> None:
        for fleet in self._fleets.values():
            document = figures_of(fleet)
            try:
                await self._write_document(connection, fleet.environment, document)
            except RefusedValue as error:
                self._refused("figures", error, environment=fleet.environment)
                # A name in it is refused. Its numbers, and that something was refused, are still known.
                plain = {key: value for key, value in document.items() if not isinstance(value, dict | list)}
                await self._write_document(connection, fleet.environment, plain)
            for what, statement, kept in (
                ("failed calls", _FAILED_CALLS, fleet.sums.failed_calls),
                ("descriptors", _DESCRIPTORS, fleet.sums.descriptors),
            ):
                await self._write_documents(
                    connection, fleet.environment, what=what, statement=statement, kept=kept
                )
        # Pages say that a gateway runs before the first pod reports.
        for environment in list(self._configured()):
            if environment not in self._fleets:
                await self._write_document(connection, environment, {})

    async def _write_document(
        self, connection: AsyncConnection, environment: str, document: dict[str, Any]
    ) -> None:
        gateway = self._settings.gateway
        # Beside the time of Postgres, it says by how much the clocks differ: see `fleet.live.stale`.
        document = document | {"wall": self._clock.wall()}
        fleet = self._fleets.get(environment)
        if fleet is not None and (woke := fleet.woke_wall) is not None:
            document = document | {"woke": woke}
        if refused := self._counts.refused_writes.lately(environment, self._clock.monotonic()):
            document = document | {"writes_refused": {gateway: refused}}
        await connection.execute(_FIGURES, (gateway, environment, Jsonb(document)))

    async def _write_documents(
        self, connection: AsyncConnection, environment: str, *, what: str, statement: str, kept: Documents
    ) -> None:
        """Write the documents that are due, each with its name."""
        due = kept.due(self._clock.monotonic())

        async def write(part: Sequence[Document]) -> None:
            rows = [(self._settings.gateway, environment, name, Jsonb(found)) for name, found in part]
            async with connection.cursor() as cursor:
                await cursor.executemany(statement, rows)

        def forget(document: Document, error: BaseException) -> None:
            self._refused(what, error, environment=environment, name=document[0])
            kept.forget(document[0])

        try:
            if due:
                await write_accepted(write, due, forget)
        except BaseException:
            kept.put_back([name for name, _ in due])
            raise

    async def _notify(
        self, connection: AsyncConnection, batch: list["_Dirty"], *, with_figures: bool
    ) -> None:
        if self._forget_at <= asyncio.get_running_loop().time():
            self._forget_at = asyncio.get_running_loop().time() + FORGET_EVERY_S
            for statement in _FORGET:
                await connection.execute(statement)
        names = [name for dirty in batch for name in dirty.names][:MAX_NAMED]
        payload = json.dumps({"servers": names, "figures": with_figures})
        await connection.execute("SELECT pg_notify(%s, %s)", (notify_channels.FLEET, payload))

    async def _upsert(self, connection: AsyncConnection, rows: list[Row]) -> None:
        async def write(part: Sequence[Row]) -> None:
            await connection.execute(UPSERT, [encode_rows(part)])

        def refused(row: Row, error: BaseException) -> None:
            self._refused("pods", error, environment=row.environment, name=row.name)

        await write_accepted(write, rows, refused)

    async def _try_to_write(self, *, with_figures: bool, every: bool = False) -> None:
        await self._postgres.attempt(self.write(with_figures=with_figures, every=every))

    def _count_failure(self) -> None:
        self._counts.flush_failures += 1

    def _refused(self, what: str, error: BaseException, *, environment: str = "", name: str = "") -> None:
        now = self._clock.monotonic()
        self._counts.refused_writes.add(what, error, now, environment=environment, name=name)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._urgent.wait()
                await asyncio.sleep(GATHER_S)
        except TimeoutError:
            pass


class _Dirty:
    """The pods that one fleet writes at the monotonic time ``now``: at most ``most``, urgent ones first."""

    def __init__(self, fleet: Fleet, now: float, most: int | None = None) -> None:
        self.fleet = fleet
        urgent, dirty = fleet.urgent, fleet.dirty
        calm = (
            name
            for name, server in dirty.items()
            if name not in urgent and now - server.written >= server.next_s * CALM_SHARE
        )
        names = list(islice(chain((name for name in urgent if name in dirty), calm), most))
        #: Whether pods with news wait for the next batch.
        self.left = len(names) == most
        self._dirty = {name: dirty.pop(name) for name in names}
        self._urgent = {name: urgent.pop(name) for name in names if name in urgent}
        self.servers = list(self._dirty.values())
        #: The urgent ones first.
        self.names = names

    def written(self, name: str, now: float) -> None:
        self._dirty.pop(name).written = now

    def put_back(self) -> None:
        """Make it dirty again, after those that wait. What became dirty in the meantime is newer."""
        for waiting, kept in ((self.fleet.urgent, self._urgent), (self.fleet.dirty, self._dirty)):
            for name, server in kept.items():
                if not server.handed_over:
                    waiting.setdefault(name, server)

    def put_back_rows(self) -> None:
        """Make those dirty again that were not written."""
        self._urgent = {name: server for name, server in self._urgent.items() if name in self._dirty}
        self.put_back()
