"""The pods as this gateway knows them, for web processes while Postgres is down."""

import asyncio
from collections.abc import Iterable

import msgspec

from controlplane.breakers.override_in_gateways import HandedOverride
from controlplane.fleet.models import ServerState
from controlplane.gateway.clock import Clock
from controlplane.gateway.servers.figures import figures_of
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.rows import Row, row_of
from controlplane.gateway.servers.server import KnownServer

#: One document answers all web processes that ask, and at most this many pods per second are encoded.
KEEP_S = 1.0
ROWS_PER_S = 2_000
#: Rows prepared before other tasks run.
_CHUNK = 50

_encode = msgspec.json.Encoder().encode


class StatusAnswers:
    """Keeps what was written down last, by environment."""

    def __init__(self, clock: Clock, *, gateway: str) -> None:
        self._clock = clock
        self._gateway = gateway
        self._written: dict[str, tuple[float, bytes]] = {}
        self._turn = asyncio.Lock()

    async def answer(self, fleet: Fleet, holds: Iterable[HandedOverride]) -> bytes:
        """An ``Answer`` as JSON, about a second old at most; older for thousands of servers."""
        async with self._turn:
            until, body = self._written.get(fleet.environment, (0.0, b""))
            if body and self._clock.monotonic() < until:
                return body
            keep_s = max(KEEP_S, len(fleet.servers) / ROWS_PER_S)
            rows = await self._rows(fleet)
            answer = {
                "servers": rows,
                "figures": figures_of(fleet),
                "holds": [hold for hold in holds if hold.environment == fleet.environment],
                "again_ms": int(keep_s * 1000),
            }
            body = _encode(answer)
            self._written[fleet.environment] = self._clock.monotonic() + keep_s, body
            return body

    async def _rows(self, fleet: Fleet) -> list[Row]:
        rows: list[Row] = []
        servers = [server for server in fleet.servers.values() if server.state is not ServerState.GONE]
        for start in range(0, len(servers), _CHUNK):
            # Some may have been handed over to another gateway meanwhile.
            there = [server for server in servers[start : start + _CHUNK] if server is _in(fleet, server)]
            fleet.refresh_rates(there)
            rows.extend([row_of(server, self._gateway) for server in there])
            await asyncio.sleep(0)
        return rows


def _in(fleet: Fleet, server: KnownServer) -> KnownServer | None:
    return fleet.servers.get(server.beat.server)
