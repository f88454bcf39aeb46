"""Alerts: what fires, since when, who works on it, and what fired in the past."""

from datetime import datetime
from typing import Literal

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import ConfigDict

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.people.acknowledge import acknowledge_alert, release_alert
from controlplane.alerts.state.stored_alerts import open_alerts, past_alerts, with_mutes
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas import FromObject, UnixTime
from controlplane.api.schemas.edits_in import Environment, Note, PageSize, RowId
from controlplane.policies.document import environment_of

router = Router()


class MutedOut(Schema):
    #: The number of the mute, to end it.
    mute: int
    by: str
    reason: str
    until: datetime
    #: It is repeated after ``until``; one period of it can be ended.
    weekly: bool


class EscalationOut(Schema):
    at: UnixTime
    receivers: list[str]


class AlertOut(FromObject):
    id: int
    #: Unique among the alerts that are not resolved.
    key: str
    #: ``pending`` until the condition lasted long enough, ``recovering`` until it stayed away long enough.
    state: Literal["pending", "firing", "recovering", "resolved"]
    severity: Literal["warning", "critical"]
    #: The worst severity since it began.
    worst: Literal["warning", "critical"]
    #: 1: handled automatically, and reported. 2: on call. 3: at once.
    level: int
    text: str
    detail: str
    #: A page of the runbooks.
    runbook: str
    true_since: datetime
    fired_at: datetime | None
    clear_since: datetime | None
    resolved_at: datetime | None
    #: The figures behind it are missing since then, so that its state does not change.
    blind_since: datetime | None
    #: Too little traffic since then to say whether it is true: after 10 minutes of that, it is resolved.
    idle_since: datetime | None
    #: Empty for an alert that is not resolved, and for one that an earlier release resolved.
    resolved_why: Literal["", "cleared", "no_traffic"]
    acknowledged_by: str
    acknowledged_at: datetime | None
    note: str
    #: Null for an alert that is not muted now, and for a resolved one.
    muted: MutedOut | None
    #: The next receivers, unless a person acknowledges it.
    escalations: list[EscalationOut]
    #: The alert that explains it, so that it is not sent.
    cause: int | None
    #: Receivers got one message that it fires and ends again and again.
    flapping_since: datetime | None

    @staticmethod
    def resolve_cause(row: Alert) -> int | None:
        return row.cause_id

    @staticmethod
    def resolve_escalations(row: Alert) -> list[dict[str, object]]:
        if row.state == AlertState.RESOLVED:
            return []
        return [{"at": at, "receivers": names} for at, names in row.escalations]


class NoteIn(Schema):
    model_config = ConfigDict(extra="forbid")

    #: A note to the others on call.
    note: Note = ""


class AcknowledgementIn(NoteIn):
    #: The severity that you have read. If the alert became critical since, nothing is changed.
    severity: Literal["warning", "critical"] | None = None


@router.get("", response=list[AlertOut])
def list_alerts(
    request: HttpRequest,
    environment: Environment,
    state: Literal["open", "resolved"] = "open",
    limit: PageSize = 100,
) -> list[Alert]:
    """Alerts that are not resolved, critical first; or those that are, the newest first."""
    slug = environment_of(environment).slug
    rows = open_alerts(slug) if state == "open" else past_alerts(slug)
    return list(rows[:limit])


@router.post("/{alert}/acknowledge", response=AlertOut, auth=needs("acknowledge_alert"))
def acknowledge(
    request: HttpRequest, environment: Environment, alert: RowId, values: AcknowledgementIn
) -> AlertOut:
    """Display that you work on this alert, until it is resolved or becomes critical."""
    row = acknowledge_alert(
        environment=environment_of(environment).slug,
        number=alert,
        note=values.note,
        actor=actor_of(request),
        seen=values.severity or "",
    )
    return _shown(row)


@router.post("/{alert}/release", response=AlertOut, auth=needs("acknowledge_alert"))
def release(request: HttpRequest, environment: Environment, alert: RowId, values: NoteIn) -> AlertOut:
    """Withdraw the acknowledgement of an alert."""
    row = release_alert(
        environment=environment_of(environment).slug,
        number=alert,
        note=values.note,
        actor=actor_of(request),
    )
    return _shown(row)


def _shown(row: Alert) -> AlertOut:
    [row] = with_mutes(row.environment, [row])
    return AlertOut.model_validate(row)
