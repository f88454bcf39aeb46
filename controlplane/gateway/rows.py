"""Servers as rows of ``fleet_server``, written many at a time."""

import json
from datetime import UTC, datetime
from typing import Any

from controlplane.gateway.liveness import due_after
from controlplane.gateway.rates import latency_counts, percentile_us
from controlplane.gateway.server import SAME_MOMENT_S, KnownServer
from fuseboard.contract.sync import BreakerView

#: Column and Postgres type, in the order of ``row_of``.
COLUMNS = {
    "environment": "text",
    "name": "text",
    "boot": "text",
    "service": "text",
    "zone": "text",
    "agent_version": "text",
    "state": "text",
    "mode": "text",
    "mode_since": "timestamptz",
    "mode_cause": "text",
    "epoch": "bigint",
    "revision": "bigint",
    "config_hash": "text",
    "config_status": "text",
    "config_source": "text",
    "config_error": "text",
    "started_at": "timestamptz",
    "last_seen_at": "timestamptz",
    "due_at": "timestamptz",
    "left_at": "timestamptz",
    "calls_per_s": "float8",
    "redis_p99_us": "integer",
    "breakers": "jsonb",
}

_MUTABLE = [name for name in COLUMNS if name not in ("environment", "name")]

# Of two gateways that know a server, the one that heard from it last is right. A row from the
# future is the trace of a clock set back, and gives way.
UPSERT = f"""
    INSERT INTO fleet_server ({", ".join(COLUMNS)})
    SELECT * FROM unnest({", ".join(f"%s::{kind}[]" for kind in COLUMNS.values())})
    ON CONFLICT (environment, name) DO UPDATE
    SET {", ".join(f"{name} = EXCLUDED.{name}" for name in _MUTABLE)}
    WHERE fleet_server.last_seen_at <= EXCLUDED.last_seen_at
       OR fleet_server.last_seen_at > now() + interval '10 seconds'
"""  # noqa: S608 - names of columns, from above

Row = tuple[Any, ...]


def row_of(server: KnownServer) -> Row:
    beat, applied = server.beat, server.beat.applied
    return (
        beat.environment,
        beat.server,
        _clean(beat.boot),
        beat.service,
        _clean(beat.zone),
        _clean(beat.agent_version),
        server.state.value,
        beat.mode.value,
        _moment(_mode_since(server)),
        _clean(beat.mode_cause),
        applied.epoch,
        applied.revision,
        _clean(applied.hash),
        applied.status.value,
        applied.source.value,
        _clean(applied.error),
        _moment(server.started_wall),
        _moment(server.seen_wall),
        _moment(server.seen_wall + due_after(server.next_s)),
        None if server.left_wall is None else _moment(server.left_wall),
        _calls_per_s(server),
        percentile_us(latency_counts(server.rates), 0.99),
        json.dumps(_breakers(server)),
    )


def columns_of(rows: list[Row]) -> list[list[Any]]:
    """The parameters of ``UPSERT``: one array per column."""
    return [list(column) for column in zip(*rows, strict=True)]


def _calls_per_s(server: KnownServer) -> float:
    requests = server.rates.get(("requests", ""), 0)
    calls = sum(value for (kind, _), value in server.rates.items() if kind == "calls")
    return (requests or calls) / 1000


def _mode_since(server: KnownServer) -> float:
    mode, read = server.beat.mode, server.seen_wall - server.beat.mode_for_ms / 1000
    known = server.mode_since
    since = read if known is None or known[0] is not mode else _steady(known[1], read)
    server.mode_since = (mode, since)
    return since


def _breakers(server: KnownServer) -> list[dict[str, object]]:
    known = server.breaker_moments
    server.breaker_moments = {
        view.dependency: _moments(view, server.seen_wall, known.get(view.dependency, (0.0, 0.0)))
        for view in server.beat.breakers
    }
    return [
        {
            "dependency": view.dependency,
            "state": view.state.value,
            "generation": view.generation,
            "since": round(server.breaker_moments[view.dependency][0], 3),
            "until": round(server.breaker_moments[view.dependency][1], 3) or None,
            "override": view.override.value if view.override else None,
            "local": view.local,
            "window_calls": view.window_calls,
            "window_failures": view.window_failures,
            "consecutive_failures": view.consecutive_failures,
        }
        for view in server.beat.breakers
    ]


def _moments(view: BreakerView, seen_wall: float, known: tuple[float, float]) -> tuple[float, float]:
    until = seen_wall + view.remaining_ms / 1000 if view.remaining_ms else 0.0
    return _steady(known[0], seen_wall - view.for_ms / 1000), _steady(known[1], until)


def _steady(known: float, read: float) -> float:
    """The same moment read twice stays where it was read first."""
    return known if abs(known - read) < SAME_MOMENT_S else read


def _moment(wall: float) -> datetime:
    return datetime.fromtimestamp(max(0.0, wall), UTC)


def _clean(text: str) -> str:
    """Postgres keeps no NUL, and no page wants control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
