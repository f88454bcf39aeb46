"""Mutes: alerts that match are displayed, but sent to no receiver, now or in a maintenance window."""

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema
from pydantic import Field

from controlplane.alerts.models import Mute
from controlplane.alerts.people.mute_edits import LONGEST, MuteValues, add_mute, end_mute, preview_mute
from controlplane.alerts.state.mutes import active_until, not_ended
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.schemas import FromObject
from controlplane.api.schemas.edits_in import Environment, Moment, Reason, ReasonIn, RowId, Strict, Text
from controlplane.policies.document import environment_of

router = Router()


class MuteMatchIn(Strict):
    """Give at least one of ``rule``, ``dependency`` and ``pod``; an alert must match each that is given."""

    rule: Text = ""
    dependency: Text = ""
    #: A name, or the beginning of names with ``*`` at the end. All pods of an alert must match.
    pod: Text = ""
    #: Null for now.
    starts_at: Moment | None = None
    #: At most 7 days, or 24 hours if it is repeated.
    minutes: Annotated[int, Field(ge=1, le=int(LONGEST.total_seconds()) // 60)] = 60
    #: Repeat it every 7 days until a person ends it.
    weekly: bool = False

    def values(self) -> MuteValues:
        return MuteValues(**self.dict(include=set(MuteMatchIn.model_fields)))


class MuteIn(MuteMatchIn):
    reason: Reason


class MuteEndIn(ReasonIn):
    #: End the present period of a weekly one, and repeat it later.
    only_period: bool = False


class MuteOut(FromObject):
    id: int
    rule: str
    dependency: str
    pod: str
    reason: str
    by: str
    starts_at: datetime
    #: The end of the first period, if it is repeated.
    ends_at: datetime
    weekly: bool
    #: A person ended the period before this moment.
    skipped_until: datetime | None
    #: Null while it does not apply.
    active_until: datetime | None

    @staticmethod
    def resolve_active_until(row: Mute) -> datetime | None:
        return active_until(row, timezone.now())


class MutedAlertOut(Schema):
    id: int
    key: str
    state: str
    severity: str
    text: str


class MutePreviewOut(Schema):
    #: Alerts that are not resolved and match.
    open: list[MutedAlertOut]
    #: How many alerts that were resolved within 30 days match.
    past: int
    #: Whether only the newest of those were counted.
    more: bool


@router.get("", response=list[MuteOut])
def list_mutes(request: HttpRequest, environment: Environment) -> list[Mute]:
    """Mutes and maintenance windows that apply now or later, at most 100."""
    return list(not_ended(environment_of(environment).slug, timezone.now()))


@router.post("", response={201: MuteOut}, auth=needs("mute_alerts"))
def create_mute(request: HttpRequest, environment: Environment, values: MuteIn) -> MuteOut:
    """Mute alerts from now on, or plan a maintenance window."""
    row = add_mute(
        environment=environment, values=values.values(), reason=values.reason, actor=actor_of(request)
    )
    return MuteOut.model_validate(row)


@router.post("/preview", response=MutePreviewOut, auth=needs("mute_alerts"))
@changes_nothing
def preview(request: HttpRequest, environment: Environment, values: MuteMatchIn) -> MutePreviewOut:
    """The alerts that a mute matches. Nothing is changed."""
    return MutePreviewOut.model_validate(preview_mute(environment=environment, values=values.values()))


@router.post("/{mute}/end", response=MuteOut, auth=needs("mute_alerts"))
def end(request: HttpRequest, environment: Environment, mute: RowId, values: MuteEndIn) -> MuteOut:
    """End a mute, or one period of it. Alerts that still fire are sent at once."""
    row = end_mute(
        environment=environment_of(environment).slug,
        number=mute,
        reason=values.reason,
        actor=actor_of(request),
        only_period=values.only_period,
    )
    return MuteOut.model_validate(row)
