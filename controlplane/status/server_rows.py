"""Pods from rows: those in Postgres, and those that gateways send while Postgres is unavailable."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from controlplane.fleet.models import Server as ServerRow
from controlplane.status.facts import BreakerSeen, PodLoad, Server

#: Columns of ``fleet_server`` and of a gateway's row that a pod has under the same names.
_COMMON = (
    *("name", "service", "zone", "state", "mode", "mode_cause", "epoch", "revision", "config_status"),
    *("config_error", "config_source", "calls_per_s", "redis_p99_us"),
)
#: Columns that a gateway of version 0.1.0 does not report.
_LATER = ("gateway", "token", "address", "share", "primitives", "serves_node", "permits")


def server_of_row(row: ServerRow) -> Server:
    return Server(
        version=row.agent_version,
        mode_since=_seconds(row.mode_since),
        started_at=_seconds(row.started_at),
        last_seen=row.last_seen_at.timestamp(),
        breakers=_breakers(row.breakers),
        load=_load(row.load),
        **{name: getattr(row, name) for name in (*_COMMON, *_LATER)},
    )


def server_of_report(row: dict[str, Any]) -> Server:
    """A gateway's row: columns are named as in ``fleet_server``, moments are unix seconds."""
    return Server(
        version=row["agent_version"],
        mode_since=row["mode_since"],
        started_at=row["started_at"],
        last_seen=row["last_seen_at"],
        breakers=_breakers(row["breakers"]),
        load=_load(row.get("load")),
        **{name: row[name] for name in _COMMON},
        **{name: row[name] for name in _LATER if name in row},
    )


def _load(document: dict[str, Any] | None) -> PodLoad | None:
    if not document:
        return None
    known = {field.name for field in fields(PodLoad)}
    return PodLoad(**{name: value for name, value in document.items() if name in known})


def _breakers(views: list[dict[str, Any]]) -> dict[str, BreakerSeen]:
    return {
        view["dependency"]: BreakerSeen(
            state=view["state"],
            generation=view.get("generation") or 0,
            since=view.get("since"),
            until=view.get("until"),
            override=view.get("override"),
            local=bool(view.get("local")),
            calls=view.get("window_calls") or 0,
            failures=view.get("window_failures") or 0,
            consecutive=view.get("consecutive_failures") or 0,
        )
        for view in views
    }


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
