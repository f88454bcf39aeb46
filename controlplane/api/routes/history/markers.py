"""Markers: what happened outside of Fuseboard, such as a deployment."""

from datetime import datetime
from typing import Literal

from django.http import HttpRequest
from ninja import Router, Schema

from controlplane.alerts.incidents.markers import add_marker, markers
from controlplane.alerts.models import Marker
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.edits_in import Environment, Moment, PageSize, Slug, Strict, Title
from controlplane.policies.document import environment_of

router = Router()


class MarkerIn(Strict):
    text: Title
    service: Slug | Literal[""] = ""
    #: Null for now; at most 7 days ago.
    at: Moment | None = None


class MarkerOut(Schema):
    id: int
    at: datetime
    text: str
    service: str
    by: str


@router.get("", response=list[MarkerOut])
def list_markers(request: HttpRequest, environment: Environment, limit: PageSize = 100) -> list[Marker]:
    """Markers of the last 90 days, the newest first."""
    return list(markers(environment_of(environment).slug)[:limit])


@router.post("", response={201: MarkerOut}, auth=needs("add_marker"))
def create_marker(request: HttpRequest, environment: Environment, values: MarkerIn) -> MarkerOut:
    """Note that something was deployed: on charts, on the page Changes, and in timelines of incidents."""
    row = add_marker(environment=environment, actor=actor_of(request), **values.model_dump())
    return MarkerOut.model_validate(row)
