"""Pods as the gateway writes them: rows put directly into the fleet's tables."""

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection


def put_server(name: str = "web-1", *, environment: str = "production", **fields: Any) -> None:
    from controlplane.fleet.models import Server

    Server.objects.update_or_create(environment=environment, name=name, defaults=_row(**fields))


def put_new_servers(names: Iterable[str], *, environment: str = "production", **fields: Any) -> None:
    """As ``put_server`` for many names that have no row, in one statement."""
    from controlplane.fleet.models import Server

    row = _row(**fields)
    Server.objects.bulk_create(Server(environment=environment, name=name, **row) for name in names)


def _row(**fields: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    row: dict[str, Any] = {
        "boot": "0123456789abcdef",
        "service": "shop",
        "zone": "zone-a",
        "agent_version": "0.1.0",
        "state": "online",
        "mode": "shared",
        "mode_since": now - timedelta(hours=2),
        "epoch": 1,
        "revision": 1000,
        "config_status": "applied",
        "config_source": "http",
        "started_at": now - timedelta(hours=2),
        "last_seen_at": now,
        "due_at": now + timedelta(seconds=5),
        "calls_per_s": 40.0,
        "redis_p99_us": 900,
        "breakers": [],
    }
    return row | fields


def breaker(dependency: str = "payments-api", state: str = "closed", **fields: Any) -> dict[str, Any]:
    view = {
        "dependency": dependency,
        "state": state,
        "generation": 1,
        "since": time.time() - 60,
        "until": time.time() + 60 if state == "open" else None,
        "override": None,
        "local": False,
        "window_calls": 40,
        "window_failures": 1,
        "consecutive_failures": 0,
    }
    return view | fields


def put_figures(**document: Any) -> None:
    from controlplane.fleet.models import Figures

    usual = {
        "requests_per_s": 100.0,
        "refused_per_s": 1.0,
        "tenants": [{"tenant": "acme-retail", "requests_per_s": 60.0, "refused_per_s": 1.0}],
        "dependencies": {
            "payments-api": {
                "calls_per_s": 20.0,
                "failures_per_s": 0.0,
                "slow_per_s": 0.0,
                "refused_per_s": 0.0,
            }
        },
        "store": {"p50_us": 300, "p99_us": 800, "timeouts_per_s": 0.0, "errors_per_s": 0.0},
        "live_servers": 3,
    }
    Figures.objects.update_or_create(
        gateway="one",
        environment="production",
        # They are fresh for 10 s, and a test may take longer.
        defaults={"at": datetime.now(UTC) + timedelta(hours=1), "document": usual | document},
    )


def put_asked(
    domain: str,
    rules: dict[str, list[int]],
    *unmatched: list[Any],
    gateway: str = "g1",
    pods: dict[str, int] | None = None,
) -> None:
    """What Envoy asked for a minute ago: rule -> asked, refused, shadow; and keys, asked, values.

    ``pods``: how many descriptors each answered; ``None`` for an older gateway.
    """
    from controlplane.fleet.models import DescriptorFigures
    from controlplane.gateway.servers.descriptor_figures import MAX_LISTED

    total = sum(asked for _, asked, _ in unmatched)
    step = {"rules": rules, "unmatched": list(unmatched), "unmatched_total": total}
    if pods is not None:
        listed = sorted(pods.items(), key=lambda one: -one[1])[:MAX_LISTED]
        step |= {"pods": listed, "pods_total": len(pods)}
    DescriptorFigures.objects.create(
        gateway=gateway,
        environment="production",
        domain=domain,
        document={"steps": [[time.time() - 60, step]]},
    )


def notify() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_notify('fuseboard_fleet', %s)", [json.dumps({"servers": [], "figures": True})]
        )
