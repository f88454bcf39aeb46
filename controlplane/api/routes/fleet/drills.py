"""Drills: selected pods act for a while as if Redis were slow or down."""

from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.edits_in import Environment, PageSize, ReasonIn, RowId, Slug
from controlplane.drills.edits import LONGEST_MINUTES, Chosen, begin_drill, end_drill
from controlplane.drills.models import Drill
from controlplane.policies.document import environment_of

router = Router()


class DrillIn(ReasonIn):
    """Give exactly one of ``servers``, ``percent`` and ``service``."""

    kind: Literal["gone", "slow"]
    minutes: Annotated[int, Field(ge=1, le=LONGEST_MINUTES)]
    servers: Annotated[list[Slug], Field(max_length=1000)] | None = None
    percent: Annotated[int, Field(ge=1, le=100)] | None = None
    service: Slug | None = None


class DrillOut(Schema):
    id: int
    kind: str
    servers: list[str]
    chosen: str
    reason: str
    actor: str
    began_at: datetime
    ends_at: datetime
    ended_at: datetime | None
    ended_by: str


@router.get("", response=list[DrillOut])
def list_drills(request: HttpRequest, environment: Environment, limit: PageSize = 100) -> list[Drill]:
    """Newest first."""
    rows = Drill.objects.filter(environment=environment_of(environment).slug)
    return list(rows.order_by("-pk")[:limit])


@router.post("", response={201: DrillOut}, auth=needs("run_drills"))
def begin(request: HttpRequest, environment: Environment, values: DrillIn) -> DrillOut:
    """Start a drill: pods act as if Redis were slow or down, from their next heartbeat on."""
    row = begin_drill(
        environment=environment,
        kind=values.kind,
        minutes=values.minutes,
        chosen=Chosen(servers=values.servers or (), percent=values.percent, service=values.service or ""),
        reason=values.reason,
        actor=actor_of(request),
    )
    return _out(row)


@router.post("/{drill}/end", response=DrillOut, auth=needs("run_drills"))
def end(request: HttpRequest, environment: Environment, drill: RowId, values: ReasonIn) -> DrillOut:
    """End a drill early."""
    row = end_drill(
        environment=environment_of(environment).slug,
        drill=drill,
        reason=values.reason,
        actor=actor_of(request),
    )
    return _out(row)


def _out(row: Drill) -> DrillOut:
    # Includes the values that the database has filled in. A document, not a row, because replies are stored.
    row.refresh_from_db()
    return DrillOut.model_validate(row)
