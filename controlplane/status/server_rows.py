"""Pods from rows: those in Postgres, and those that gateways send while Postgres is unavailable."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from controlplane.fleet.models import Server as ServerRow
from controlplane.status.facts import BreakerSeen, PodLoad, Server


def server_of_row(row: ServerRow) -> Server:
    return Server(
        name=row.name,
        service=row.service,
        zone=row.zone,
        version=row.agent_version,
        state=row.state,  # type: ignore[arg-type]  # the row's constraint lists the same words
        mode=row.mode,
        mode_since=_seconds(row.mode_since),
        mode_cause=row.mode_cause,
        epoch=row.epoch,
        revision=row.revision,
        config_status=row.config_status,
        config_error=row.config_error,
        config_source=row.config_source,
        started_at=_seconds(row.started_at),
        last_seen=row.last_seen_at.timestamp(),
        calls_per_s=row.calls_per_s,
        redis_p99_us=row.redis_p99_us,
        breakers=_breakers(row.breakers),
        load=_load(row.load),
        gateway=row.gateway,
        token=row.token,
        address=row.address,
        share=row.share,
        primitives=row.primitives,
    )


def server_of_report(row: dict[str, Any]) -> Server:
    """A gateway's row: columns are named as in ``fleet_server``, moments are unix seconds."""
    return Server(
        name=row["name"],
        service=row["service"],
        zone=row["zone"],
        version=row["agent_version"],
        state=row["state"],
        mode=row["mode"],
        mode_since=row["mode_since"],
        mode_cause=row["mode_cause"],
        epoch=row["epoch"],
        revision=row["revision"],
        config_status=row["config_status"],
        config_error=row["config_error"],
        config_source=row["config_source"],
        started_at=row["started_at"],
        last_seen=row["last_seen_at"],
        calls_per_s=row["calls_per_s"],
        redis_p99_us=row["redis_p99_us"],
        breakers=_breakers(row["breakers"]),
        # A gateway of version 0.1.0 reports none.
        load=_load(row.get("load")),
        gateway=row.get("gateway", ""),
        token=row.get("token", ""),
        address=row.get("address", ""),
        share=row.get("share", {}),
        primitives=row.get("primitives"),
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
