"""Opens, joins, reopens and closes incidents, in the transaction of the evaluation.

An alert that was sent at level 2 or 3 opens an incident. So a muted alert opens none, and one that another
alert explains joins the incident of that alert. An alert has one incident in a column, and the evaluation
writes it with the alert: a process that dies makes no incident twice, and loses none.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.db.models import Count, Max, Min, Q

from controlplane.alerts.lifecycle import LONGEST_PAUSE_S, AlertState
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Incident
from controlplane.alerts.state.causes import cause_of
from controlplane.fleet.live import divisor

log = structlog.get_logger(__name__)

#: The lowest level of an alert that opens an incident.
MIN_LEVEL = 2
#: It closes when all alerts are resolved for this time, and is reopened if its cause returns within it.
QUIET = timedelta(minutes=10)


def follow(environment: str, rows: Sequence[Alert], now: float, passed_s: float = 0.0) -> None:
    """Bring the incidents up to date with the alerts of one evaluation, also with those just resolved."""
    at = datetime.fromtimestamp(now, UTC)
    free = [row for row in rows if row.incident_id is None and row.state != AlertState.RESOLVED]
    for row in free:
        if row.notified and row.level >= MIN_LEVEL:
            _join(row, _of_explained(row, rows) or incident_for(row, at))
    numbered = {row.pk: row for row in rows}
    for row in free:
        incident = _of_causes(row, numbered)
        if row.incident_id is None and incident is not None:
            _join(row, incident)
    opened = list(Incident.objects.filter(environment=environment, closed_at=None))
    if opened:
        _refresh(opened, at, passed_s)


def incident_for(row: Alert, at: datetime) -> Incident:
    """The open incident of the alert's cause, one that is reopened, or a new one."""
    episodes = Alert.objects.filter(environment=row.environment, key=row.key, incident__isnull=False)
    last = episodes.exclude(pk=row.pk).select_related("incident").order_by("-true_since", "-pk").first()
    if last is not None and last.incident is not None:
        before = last.incident
        if before.closed_at is None:
            return before
        if last.resolved_at is not None and row.true_since - last.resolved_at <= QUIET:
            return _of_cause(row.environment, before.cause) or _reopened(before)
    return _of_cause(row.environment, row.key) or _opened(row, at)


def retitle(row: Alert, before: str) -> None:
    """Name the incident that has the words of this alert by its new worst ones."""
    if before and row.incident is not None and row.incident.title == before != row.worst_text:
        row.incident.title = row.worst_text
        row.incident.save(update_fields=["title"])


def figures_of(incidents: Sequence[Incident]) -> dict[int, dict[str, Any]]:
    """The state that the alerts of each incident have together."""
    rows = Alert.objects.filter(incident__in=incidents).values("incident")
    found = rows.annotate(
        since=Min("true_since"),
        last=Max("resolved_at"),
        most=Max("level"),
        critical=Count("pk", filter=Q(worst="critical")),
        left=Count("pk", filter=~Q(state=AlertState.RESOLVED)),
    )
    return {row["incident"]: dict(row) for row in found}


def detected_at(incidents: Sequence[Incident]) -> dict[int, datetime]:
    """Incident -> when its first message was sent, for those of which one was."""
    if not incidents:
        return {}
    rows = Delivery.objects.filter(alert__incident__in=incidents, state=DeliveryState.SENT)
    found = rows.values("alert__incident").annotate(first=Min("sent_at"))
    return {row["alert__incident"]: row["first"] for row in found if row["first"] is not None}


def take_figures(incident: Incident, figures: dict[str, Any]) -> list[str]:
    """Set start, level and severity by its alerts. Returns the fields that changed."""
    values = {
        "started_at": figures["since"],
        "level": figures["most"],
        "severity": "critical" if figures["critical"] else "warning",
    }
    changed = [name for name, value in values.items() if getattr(incident, name) != value]
    for name in changed:
        setattr(incident, name, values[name])
    return changed


def _of_causes(row: Alert, numbered: Mapping[int, Alert]) -> Incident | None:
    """The incident of the alert that explains this one, or of what explains that."""
    cause, seen = numbered.get(row.cause_id or 0, row.cause), set[int]()
    while cause is not None and cause.incident is None and cause.pk not in seen:
        seen.add(cause.pk)
        cause = numbered.get(cause.cause_id or 0, cause.cause)
    return cause.incident if cause is not None else None


def _of_explained(row: Alert, rows: Sequence[Alert]) -> Incident | None:
    """The open incident of an alert that this one explains, but that was sent before this one was known."""
    for other in rows:
        if other.incident is None or other.incident.closed_at is not None:
            continue
        if cause_of(other, [row]) is row:
            if row.level > other.incident.level:
                other.incident.title = row.worst_text or row.text
                other.incident.save(update_fields=["title"])
            return other.incident
    return None


def _of_cause(environment: str, cause: str) -> Incident | None:
    return Incident.objects.filter(environment=environment, cause=cause, closed_at=None).first()


def _opened(row: Alert, at: datetime) -> Incident:
    incident = Incident.objects.create(
        environment=row.environment,
        cause=row.key,
        title=row.worst_text or row.text,
        level=row.level,
        severity=row.worst,
        started_at=row.true_since,
        opened_at=at,
        divisor=divisor(row.environment),
    )
    log.warning("incident.opened", environment=row.environment, incident=incident.pk, cause=row.key)
    return incident


def _reopened(incident: Incident) -> Incident:
    incident.closed_at, incident.closed_by, incident.quiet_since = None, "", None
    incident.reopened += 1
    incident.save(update_fields=["closed_at", "closed_by", "quiet_since", "reopened"])
    log.warning("incident.reopened", environment=incident.environment, incident=incident.pk)
    return incident


def _join(row: Alert, incident: Incident) -> None:
    row.incident = incident
    row.save(update_fields=["incident"])


def _refresh(opened: Sequence[Incident], at: datetime, passed_s: float) -> None:
    every = figures_of(opened)
    first = detected_at([incident for incident in opened if incident.detected_at is None])
    for incident in opened:
        figures = every.get(incident.pk)
        changed = take_figures(incident, figures) if figures else []
        if incident.pk in first:
            incident.detected_at = first[incident.pk]
            changed.append("detected_at")
        quiet = incident.quiet_since
        if figures and figures["left"]:
            quiet = None
        elif quiet is None:
            quiet = at
        elif passed_s > LONGEST_PAUSE_S:
            # Time in which nobody evaluated the rules does not show that it stayed quiet.
            quiet = min(at, quiet + timedelta(seconds=passed_s))
        if quiet != incident.quiet_since:
            incident.quiet_since = quiet
            changed.append("quiet_since")
        if quiet is not None and at - quiet >= QUIET:
            incident.closed_at = at
            changed.append("closed_at")
            log.info("incident.closed", environment=incident.environment, incident=incident.pk)
        if changed:
            incident.save(update_fields=changed)
