"""Stored alerts, for pages and the API."""

from dataclasses import dataclass

from django.db.models import QuerySet

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert


@dataclass(frozen=True, kw_only=True)
class StoredAlert:
    """What Postgres knows of an alert that is not resolved."""

    id: int
    severity: str
    #: Since when its condition is true at this severity or a worse one, in unix seconds.
    since: float
    #: It lasted for the time of its rule.
    fired: bool
    acknowledged_by: str = ""


def stored_alerts(environment: str) -> dict[str, StoredAlert]:
    """The alerts that are not resolved, by key."""
    rows = Alert.objects.filter(environment=environment).exclude(state=AlertState.RESOLVED)
    return {
        row.key: StoredAlert(
            id=row.pk,
            severity=row.severity,
            since=row.level_since.timestamp(),
            fired=row.fired_at is not None,
            acknowledged_by=row.acknowledged_by,
        )
        for row in rows
    }


def open_alerts(environment: str) -> list[Alert]:
    """Alerts that are not resolved: critical first, those that fire before pending ones, then the newest."""
    rows = Alert.objects.filter(environment=environment).exclude(state=AlertState.RESOLVED)
    return sorted(
        rows,
        key=lambda row: (
            row.severity != "critical",
            row.state == AlertState.PENDING,
            -row.true_since.timestamp(),
            row.key,
        ),
    )


def past_alerts(environment: str) -> QuerySet[Alert]:
    """Resolved alerts, the newest first."""
    return Alert.objects.filter(environment=environment, state=AlertState.RESOLVED).order_by(
        "-resolved_at", "-id"
    )
