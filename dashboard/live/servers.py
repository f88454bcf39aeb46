"""Servers as the pages show them: those in trouble first."""

from collections import defaultdict
from dataclasses import dataclass

from controlplane.status.facts import Facts, Server
from dashboard.live.breaker_looks import FACES
from dashboard.live.breakers import Breaker

#: A server reports every 5 s, so that a lag below two beats says nothing yet.
LAG_WARN_S = 10.0
LAG_CRITICAL_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ServerRow:
    server: Server
    #: gone | lag | local | ramping | shared; its order is the order of the table.
    kind: str
    word: str
    css: str
    lag_s: float
    #: "exact", or "1/3 each".
    limits: str
    #: Breakers this server sees differently from the fleet.
    differs: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def p99_ms(self) -> str:
        return f"{(self.server.redis_p99_us or 0) / 1000:.1f}"

    @property
    def troubled(self) -> bool:
        return self.kind != "shared"


_ORDER = ("rejected", "silent", "lag", "local", "drill", "ramping", "shared")
_WORDS = {
    "rejected": "Config refused",
    "silent": "No heartbeat",
    "lag": "Old config",
    "local": "Local fallback",
    "drill": "Drill",
    "ramping": "Ramping up",
    "shared": "Shared",
}


def server_rows(facts: Facts, breakers: tuple[Breaker, ...]) -> tuple[ServerRow, ...]:
    rows = [_row(server, facts, breakers) for server in facts.servers if server.state != "gone"]
    return tuple(sorted(rows, key=lambda row: (_ORDER.index(row.kind), row.name)))


def _row(server: Server, facts: Facts, breakers: tuple[Breaker, ...]) -> ServerRow:
    lag = facts.lag_s(server)
    kind = _kind(server, lag)
    return ServerRow(
        server=server,
        kind=kind,
        word=_WORDS[kind],
        css="st-open" if kind in ("rejected", "silent") else "" if kind == "shared" else "st-warn",
        lag_s=lag,
        limits=f"1/{facts.divisor} each"
        if server.mode in ("local", "drill")
        else "rising"
        if server.mode == "ramping"
        else "exact",
        differs=tuple(_differences(server, breakers)),
    )


def _kind(server: Server, lag: float) -> str:
    if not server.live:
        return "silent"
    if server.config_status == "rejected":
        return "rejected"
    if server.mode in ("local", "drill"):
        return server.mode
    if lag > LAG_WARN_S:
        return "lag"
    return "ramping" if server.mode == "ramping" else "shared"


def _differences(server: Server, breakers: tuple[Breaker, ...]) -> list[str]:
    words = []
    for breaker in breakers:
        view = server.breakers.get(breaker.name)
        if view is None or not server.live:
            continue
        face = FACES[view.override or view.state]
        if face != breaker.face and not (face.kind == "closed" and breaker.face.kind == "stale"):
            words.append(f"{breaker.name} {face.word.lower()}")
    return words


@dataclass(frozen=True, kw_only=True)
class Zone:
    name: str
    rows: tuple[ServerRow, ...]


def zones(rows: tuple[ServerRow, ...]) -> tuple[Zone, ...]:
    """Rows by zone, each by name: where it hurts shows before any name is read."""
    by_zone: dict[str, list[ServerRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.name):
        by_zone[row.server.zone or "no zone"].append(row)
    return tuple(Zone(name=name, rows=tuple(members)) for name, members in sorted(by_zone.items()))


@dataclass(frozen=True, kw_only=True)
class FleetSummary:
    rows: tuple[ServerRow, ...]
    zones: tuple[Zone, ...]
    total: int
    shared: int
    local: tuple[str, ...]
    drill: tuple[str, ...]
    ramping: tuple[str, ...]
    lagging: tuple[str, ...]
    silent: tuple[str, ...]
    rejected: tuple[str, ...]
    #: Live servers that have applied the newest revision, and live servers.
    applied: int
    live: int
    divisor: int
    worst_lag_s: float
    worst_lag_server: str
    #: Since when the first server of those has been limiting locally.
    local_since: float | None
    versions: tuple[str, ...]

    @property
    def attention(self) -> int:
        return sum(row.troubled for row in self.rows)


def summary(facts: Facts, rows: tuple[ServerRow, ...]) -> FleetSummary:
    def names(kind: str) -> tuple[str, ...]:
        return tuple(row.name for row in rows if row.kind == kind)

    live = [row for row in rows if row.server.live]
    worst = max(live, key=lambda row: row.lag_s, default=None)
    local_since = [row.server.mode_since for row in live if row.kind == "local" and row.server.mode_since]
    return FleetSummary(
        rows=rows,
        zones=zones(rows),
        total=len(rows),
        shared=len(names("shared")),
        local=names("local"),
        drill=names("drill"),
        ramping=names("ramping"),
        lagging=names("lag"),
        silent=names("silent"),
        rejected=names("rejected"),
        applied=sum(not facts.behind(row.server) for row in live),
        live=len(live),
        divisor=facts.divisor,
        worst_lag_s=worst.lag_s if worst else 0.0,
        worst_lag_server=worst.name if worst and worst.lag_s > 0 else "",
        local_since=min(local_since, default=None),
        versions=tuple(sorted({row.server.version for row in live if row.server.version})),
    )
