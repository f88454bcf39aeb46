"""Stored incidents, for pages and the API."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Incident
from controlplane.alerts.rules.texts import past
from controlplane.alerts.state.stored_alerts import words_of
from controlplane.errors import find

KEPT_DAYS = 90
#: Incidents of one environment.
MAX_KEPT = 5_000
#: Alerts of one incident that are listed.
MAX_ALERTS = 100
_AT_ONCE = 500
#: States in which what the title says is not true any more.
_OVER = ("recovering", "quiet", "closed")
#: States of an alert whose condition is not true any more.
_NOT_TRUE = frozenset((AlertState.RECOVERING.value, AlertState.RESOLVED.value))


def incidents(environment: str) -> QuerySet[Incident]:
    """The newest first."""
    return Incident.objects.filter(environment=environment).order_by("-started_at", "-pk")


def find_incident(environment: str, number: int) -> Incident:
    """Raises ``NotFound``."""
    return find(Incident.objects.filter(environment=environment), "incident", pk=number)


def alerts_of(incident: Incident) -> list[Alert]:
    """Open ones first, then the newest."""
    rows = Alert.objects.filter(incident=incident).select_related("cause", "incident").without_chart()
    return list(rows.order_by("-resolved_at", "true_since", "pk")[:MAX_ALERTS])


def subjects_of(incident: Incident) -> set[tuple[str, str]]:
    """Kind and name of what its alerts are about.

    One that another alert explains is about a consequence: a tenant that spends its own quota meanwhile.
    """
    every = Alert.objects.filter(incident=incident)
    causes = every.filter(cause=None)
    alerts = causes if causes.exists() else every
    return set(alerts.values_list("subject_kind", "subject_name").distinct())


def state_of(incident: Incident) -> str:
    """``open``, ``quiet`` while all alerts are resolved, ``closed`` or ``merged``."""
    if incident.merged_into_id is not None:
        return "merged"
    if incident.closed_at is not None:
        return "closed"
    return "quiet" if incident.quiet_since is not None else "open"


def recovering(rows: Iterable[Incident]) -> frozenset[int]:
    """Numbers of the open ones of which no alert is true any more, though not all are resolved yet."""
    opened = [row.pk for row in rows if state_of(row) == "open"]
    found: dict[int | None, set[str]] = {}
    for number, state in (
        Alert.objects.filter(incident__in=opened).values_list("incident", "state").distinct()
    ):
        found.setdefault(number, set()).add(state)
    return frozenset(number for number, states in found.items() if number is not None and states <= _NOT_TRUE)


def open_counts(environment: str) -> tuple[int, int]:
    """How many incidents are active, and how many are open but recover. It reads no incident."""
    alerts = Alert.objects.filter(incident=OuterRef("pk"))
    true = alerts.exclude(state__in=_NOT_TRUE)
    active = Q(quiet_since=None, merged_into=None) & (Exists(true) | ~Exists(alerts))
    counted = incidents(environment).filter(closed_at=None)
    found = counted.aggregate(active=Count("pk", filter=active), every=Count("pk"))
    return found["active"], found["every"] - found["active"]


def described(rows: Iterable[Incident]) -> list[dict[str, Any]]:
    """Incidents with their state, title and severity, for every page, report and reply.

    While one is active, these are of now, and ``worst`` says what it was at its worst. Once no alert of it is
    true, they are of its worst moment, in the past tense.
    """
    rows = list(rows)
    over = recovering(rows)
    active = [row for row in rows if row.pk not in over and state_of(row) == "open"]
    alerts: dict[int | None, list[dict[str, Any]]] = {}
    fields = ("incident", "key", "state", "severity", "text", "worst_text")
    for alert in Alert.objects.filter(incident__in=active).order_by("true_since", "pk").values(*fields):
        alerts.setdefault(alert["incident"], []).append(dict(alert))
    found = []
    for row in rows:
        state = "recovering" if row.pk in over else state_of(row)
        told: dict[str, Any] = {
            "incident": row,
            "state": state,
            "title": row.title,
            "severity": row.severity,
            "worst": "",
        }
        if state in _OVER:
            told["title"] = past(row.title)
        elif row.pk in alerts:
            told |= _of_now(row, alerts[row.pk])
        found.append(told)
    return found


def title_of(row: Incident) -> str:
    """Its title, in the tense of its state."""
    title: str = described([row])[0]["title"]
    return title


def _of_now(row: Incident, alerts: list[dict[str, Any]]) -> dict[str, str]:
    """The present words and severity of an active incident: its stored ones are of its worst moment."""
    named = [one["key"] for one in alerts if (one["worst_text"] or one["text"]) == row.title]
    key = named[-1] if named else row.cause
    own = next((one for one in reversed(alerts) if one["key"] == key), None)
    true = {one["severity"] for one in alerts if one["state"] not in _NOT_TRUE}
    severity = "critical" if not true or "critical" in true else "warning"
    return {
        "title": words_of(own["state"], own["text"], own["worst_text"]) if own is not None else row.title,
        "severity": severity,
        "worst": past(row.title) if severity != row.severity == "critical" else "",
    }


def forget_incidents() -> int:
    """Delete incidents that closed too long ago, or are too many. Returns how many."""
    old = list(
        Incident.objects.filter(closed_at__lt=timezone.now() - timedelta(days=KEPT_DAYS))
        .order_by("closed_at")
        .values_list("pk", flat=True)[:_AT_ONCE]
    )
    for slug in Incident.objects.order_by("environment").values_list("environment", flat=True).distinct():
        closed = Incident.objects.filter(environment=slug, closed_at__isnull=False)
        old += list(
            closed.order_by("-closed_at").values_list("pk", flat=True)[MAX_KEPT : MAX_KEPT + _AT_ONCE]
        )
    Incident.objects.filter(pk__in=old).delete()
    return len(old)
