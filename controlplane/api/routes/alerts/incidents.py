"""Incidents: what is open, what was, their timeline and report, and what people do with them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import AfterValidator, Field

from controlplane.alerts.incidents.edits import (
    LONGEST_NOTE,
    MAX_STEP,
    add_note,
    close_incident,
    merge_incident,
    split_alert,
    tick_step,
)
from controlplane.alerts.incidents.markdown import as_markdown
from controlplane.alerts.incidents.reading import alerts_of, find_incident, incidents, state_of, title_of
from controlplane.alerts.incidents.report import Report, report_of
from controlplane.alerts.incidents.timeline import Line, timeline
from controlplane.alerts.models import Incident
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas import FromObject
from controlplane.api.schemas.edits_in import (
    Environment,
    PageSize,
    Reason,
    ReasonIn,
    RowId,
    Slug,
    Strict,
    lines,
)
from controlplane.policies.document import environment_of

router = Router()


class IncidentOut(FromObject):
    id: int
    #: The words of now while it is active; then those of its worst moment, in the past tense.
    title: str
    #: Key of the alert that opened it. An environment has one open incident of a cause.
    cause: str
    #: ``quiet`` while all of its alerts are resolved, for 10 minutes; then ``closed``.
    state: Literal["open", "quiet", "closed", "merged"]
    #: The highest level and the worst severity of its alerts.
    level: int
    severity: Literal["warning", "critical"]
    #: When the first of its conditions became true.
    started_at: datetime
    opened_at: datetime
    #: When the first message was sent.
    detected_at: datetime | None
    quiet_since: datetime | None
    closed_at: datetime | None
    #: Empty if it closed automatically.
    closed_by: str
    #: How often its cause returned after it was closed.
    reopened: int
    merged_into: int | None

    @staticmethod
    def resolve_title(row: Incident) -> str:
        return title_of(row)

    @staticmethod
    def resolve_state(row: Incident) -> str:
        return state_of(row)

    @staticmethod
    def resolve_merged_into(row: Incident) -> int | None:
        return row.merged_into_id


class IncidentAlertOut(Schema):
    id: int
    key: str
    state: str
    severity: str
    level: int
    text: str
    runbook: str
    true_since: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    acknowledged_by: str


class WholeIncidentOut(IncidentOut):
    #: At most 100.
    alerts: list[IncidentAlertOut]

    @staticmethod
    def resolve_alerts(row: Incident) -> list[Any]:
        return alerts_of(row)


class LineOut(Schema):
    at: datetime
    #: ``alert``, ``delivery``, ``breaker``, ``override``, ``edit``, ``other``, ``pod``, ``marker``, ``step``,
    #: or ``note``.
    kind: str
    what: str
    #: Empty for what happened automatically.
    who: str
    thing: str
    detail: str
    reason: str
    revision: int | None


class AffectedTenantOut(Schema):
    tenant: str
    #: Estimated from samples.
    refused: int


class ReportOut(Schema):
    incident: IncidentOut
    started_at: datetime
    detected_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str
    #: When the last alert was resolved; null while one is not.
    recovered_at: datetime | None
    #: Actions of people, the oldest first, at most 100.
    actions: list[LineOut]
    #: At most 20, the most refused first.
    tenants: list[AffectedTenantOut]
    more_tenants: int
    #: The most that limits admitted while pods decided locally.
    bound: str
    usage: str


NoteText = Annotated[str, Field(min_length=1, max_length=LONGEST_NOTE), AfterValidator(lines)]


class IncidentNoteIn(Strict):
    text: NoteText


class StepIn(Strict):
    runbook: Slug
    #: Its number in the runbook.
    step: Annotated[int, Field(ge=1, le=MAX_STEP)]
    text: NoteText
    #: False withdraws it.
    done: bool = True


class MergeIn(Strict):
    into: RowId
    reason: Reason


class SplitIn(Strict):
    #: The number of an alert of this incident. All of its episodes move.
    alert: RowId
    reason: Reason


class WrittenLineOut(Schema):
    id: int
    at: datetime
    by: str
    text: str
    #: Empty for a note.
    runbook: str
    step: int | None
    done: bool


@router.get("", response=list[IncidentOut])
def list_incidents(
    request: HttpRequest,
    environment: Environment,
    state: Literal["open", "closed", "any"] = "any",
    limit: PageSize = 100,
) -> list[Incident]:
    """Incidents of the last 90 days, the newest first."""
    rows = incidents(environment_of(environment).slug)
    if state != "any":
        rows = rows.filter(closed_at__isnull=state == "open")
    return list(rows[:limit])


@router.get("/{incident}", response=WholeIncidentOut)
def get_incident(request: HttpRequest, environment: Environment, incident: RowId) -> Incident:
    """One incident with its alerts."""
    return find_incident(environment_of(environment).slug, incident)


@router.get("/{incident}/timeline", response=list[LineOut])
def get_timeline(
    request: HttpRequest, environment: Environment, incident: RowId, limit: PageSize = 100
) -> list[Line]:
    """What happened, the newest first."""
    return timeline(find_incident(environment_of(environment).slug, incident), most=limit)[:limit]


@router.get(
    "/{incident}/report",
    response=ReportOut,
    openapi_extra={"responses": {200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}}},
)
def get_report(
    request: HttpRequest,
    environment: Environment,
    incident: RowId,
    format: Literal["json", "markdown"] = "json",  # noqa: A002
) -> Report | HttpResponse:
    """Beginning, detection, actions, recovery, and affected tenants; as Markdown with the timeline."""
    report = report_of(find_incident(environment_of(environment).slug, incident))
    return markdown_file(report) if format == "markdown" else report


def markdown_file(report: Report) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="incident-{report.incident.pk}.md"'}
    return HttpResponse(as_markdown(report), content_type="text/markdown; charset=utf-8", headers=headers)


@router.post("/{incident}/notes", response={201: WrittenLineOut}, auth=needs("edit_incident"))
def create_note(
    request: HttpRequest, environment: Environment, incident: RowId, values: IncidentNoteIn
) -> WrittenLineOut:
    """Add a note to the timeline."""
    return WrittenLineOut.model_validate(
        add_note(text=values.text, **_common(request, environment, incident))
    )


@router.post("/{incident}/steps", response=WrittenLineOut, auth=needs("edit_incident"))
def tick(request: HttpRequest, environment: Environment, incident: RowId, values: StepIn) -> WrittenLineOut:
    """Note that a step of a runbook was done, or withdraw that. Sent twice, it is noted once."""
    line = tick_step(**values.model_dump(), **_common(request, environment, incident))
    return WrittenLineOut.model_validate(line)


@router.post("/{incident}/merge", response=IncidentOut, auth=needs("edit_incident"))
def merge(request: HttpRequest, environment: Environment, incident: RowId, values: MergeIn) -> IncidentOut:
    """Move everything of this incident to another one, and close it. Replies with the other one."""
    row = merge_incident(into=values.into, reason=values.reason, **_common(request, environment, incident))
    return IncidentOut.model_validate(row)


@router.post("/{incident}/split", response={201: IncidentOut}, auth=needs("edit_incident"))
def split(request: HttpRequest, environment: Environment, incident: RowId, values: SplitIn) -> IncidentOut:
    """Move an alert into a new incident. Replies with that incident."""
    row = split_alert(alert=values.alert, reason=values.reason, **_common(request, environment, incident))
    return IncidentOut.model_validate(row)


@router.post("/{incident}/close", response=IncidentOut, auth=needs("edit_incident"))
def close(request: HttpRequest, environment: Environment, incident: RowId, values: ReasonIn) -> IncidentOut:
    """Close it by hand. Alerts that still fire open no other incident."""
    row = close_incident(reason=values.reason, **_common(request, environment, incident))
    return IncidentOut.model_validate(row)


def _common(request: HttpRequest, environment: str, incident: int) -> dict[str, Any]:
    slug = environment_of(environment).slug
    return {"environment": slug, "number": incident, "actor": actor_of(request)}
