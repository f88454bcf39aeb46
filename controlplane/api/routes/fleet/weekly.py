"""The weekly summary."""

from datetime import date, datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router, Schema

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.routes.alerts.receivers import DeliveryOut
from controlplane.api.schemas.edits_in import Environment, Slug, Strict
from controlplane.errors import NotFound
from controlplane.policies.document import environment_of
from controlplane.weekly.keep import find_summary
from controlplane.weekly.send import send_now

Week = Annotated[date | None, Query(description="Its Monday; without it, the newest week.")]

router = Router()


class SummaryLineOut(Schema):
    """What was found about one thing, and what to change."""

    name: str
    #: The evidence: figures, and of which time.
    found: str
    #: Empty for a line that only informs.
    suggestion: str
    #: The kind of thing that `key` names: `tenant`, `breaker`, `tier`, `dependency`, or `alerts`.
    opens: str
    #: Empty for a caller that is not registered.
    key: str
    #: The limit of a tier that `size` is suggested for.
    limit: str
    #: The suggested size; null for none.
    size: int | None


class SummarySectionOut(Schema):
    """One section."""

    title: str
    #: The part of the week that is known.
    known: str
    #: The meaning of no lines: nothing was found, or nothing is known.
    nothing: str
    #: Lines that are not listed.
    more: int
    lines: list[SummaryLineOut]


class WeeklySummaryOut(Schema):
    """What was refused, open, too low, never reached or flapping in a week."""

    environment: str
    #: Its Monday, in UTC.
    begins: date
    made_at: datetime
    #: When it was sent to the receivers that want it; null before Monday morning.
    sent_at: datetime | None
    sections: list[SummarySectionOut]


class SendWeeklyIn(Strict):
    receiver: Slug


@router.get("", response=WeeklySummaryOut)
def get_weekly_summary(
    request: HttpRequest,
    environment: Environment,
    week: Week = None,
) -> Any:
    """The summary of a week. The worker makes one each Monday, and keeps 13."""
    found = find_summary(environment_of(environment).slug, week)
    if found is None:
        raise NotFound("weekly summary", str(week) if week else "of this environment")
    return found


@router.post("/send", response={202: DeliveryOut}, auth=needs("manage_receivers"))
def send_weekly_summary(
    request: HttpRequest, environment: Environment, values: SendWeeklyIn, week: Week = None
) -> DeliveryOut:
    """Send a summary to one receiver now, also again. The log of its deliveries displays the result."""
    row = send_now(
        environment=environment_of(environment).slug,
        begins=week,
        receiver=values.receiver,
        actor=actor_of(request),
    )
    row.refresh_from_db()
    return DeliveryOut.model_validate(row)
