"""Routes of alerts: which receivers get which alerts, in order, and who gets an alert now."""

from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from controlplane.alerts.models import Route
from controlplane.alerts.people.route_edits import (
    LONGEST_ESCALATION_MIN,
    MAX_ESCALATIONS,
    MAX_RECEIVERS,
    RoutePreview,
    RouteValues,
    preview_route,
    put_route,
    remove_route,
)
from controlplane.alerts.people.routing import routes_of, warnings
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas import FromObject
from controlplane.api.schemas.configuration_out import Done
from controlplane.api.schemas.edits_in import Environment, Reason, Slug, Strict, Text, Title
from controlplane.policies.document import environment_of

router = Router()


class EscalationIn(Strict):
    #: After the first message.
    after_minutes: Annotated[int, Field(ge=1, le=LONGEST_ESCALATION_MIN)]
    receivers: Annotated[list[Slug], Field(min_length=1, max_length=MAX_RECEIVERS)]


class AlertRouteIn(Strict):
    #: The owner of the dependency that an alert is about. Empty matches every alert.
    owner: Text = ""
    least_level: Annotated[int, Field(ge=1, le=3)] = 1
    least_severity: Literal["warning", "critical"] = "warning"
    #: 0 is Monday. Empty for every day.
    days: Annotated[list[Annotated[int, Field(ge=0, le=6)]], Field(max_length=7, default_factory=list)]
    #: Like 09:00. Both empty for the whole day; an end before the beginning is on the next day.
    begins: Annotated[str, Field(max_length=5)] = ""
    ends: Annotated[str, Field(max_length=5)] = ""
    zone: Annotated[str, Field(max_length=64)] = "UTC"
    #: Empty in the default route: every receiver.
    receivers: Annotated[list[Slug], Field(max_length=MAX_RECEIVERS, default_factory=list)]
    #: Later receivers of the alert, unless a person acknowledges it.
    escalations: Annotated[list[EscalationIn], Field(max_length=MAX_ESCALATIONS, default_factory=list)]
    #: 1 is asked first. Null keeps the place; a new route is the last before the default.
    place: Annotated[int, Field(ge=1, le=100)] | None = None
    reason: Reason


class AlertRouteOut(FromObject):
    name: str
    owner: str
    least_level: int
    least_severity: Literal["warning", "critical"]
    days: list[int]
    begins: str
    ends: str
    zone: str
    receivers: list[str]
    escalations: list[EscalationIn]

    @staticmethod
    def resolve_receivers(row: Route) -> list[str]:
        return list(row.steps[0][1])

    @staticmethod
    def resolve_escalations(row: Route) -> list[dict[str, object]]:
        return [{"after_minutes": after_min, "receivers": names} for after_min, names in row.steps[1:]]


class AlertRoutesOut(Schema):
    #: The first that matches decides. The last is the default.
    routes: list[AlertRouteOut]
    #: Alerts of level 2 or 3 that would reach no receiver.
    warnings: list[str]


class AddressedOut(Schema):
    receiver: str
    #: Why it does not get the alert. Empty if it does.
    refusal: str


class AlertStepOut(Schema):
    at: datetime
    receivers: list[AddressedOut]


class PlanOut(FromObject):
    at: datetime
    route: str
    #: The owner of the dependency.
    owner: str
    level: int
    #: Not null if a mute hides the alert at this time.
    muted_until: datetime | None
    steps: list[AlertStepOut]

    @staticmethod
    def resolve_muted_until(plan: RoutePreview) -> datetime | None:
        return plan.muted.until if plan.muted is not None else None


@router.get("", response=AlertRoutesOut, auth=needs("acknowledge_alert"))
def list_routes(request: HttpRequest, environment: Environment) -> dict[str, object]:
    """The routes in their order, and alerts that would reach no receiver."""
    slug = environment_of(environment).slug
    return {"routes": routes_of(slug), "warnings": warnings(slug)}


@router.get("/preview", response=PlanOut, auth=needs("acknowledge_alert"))
def preview(
    request: HttpRequest,
    environment: Environment,
    rule: Title,
    dependency: Text = "",
    severity: Literal["warning", "critical"] = "critical",
) -> RoutePreview:
    """Who gets an alert of this rule if it fires now."""
    return preview_route(environment=environment, rule=rule, dependency=dependency, severity=severity)


@router.put("/{route}", response=AlertRouteOut, auth=needs("manage_receivers"))
def set_route(
    request: HttpRequest, environment: Environment, route: Slug, values: AlertRouteIn
) -> AlertRouteOut:
    """Add a route, or replace one. Of the route `default`, only the receivers can change."""
    row = put_route(
        environment=environment,
        name=route,
        values=RouteValues(
            **values.dict(exclude={"reason", "place", "days", "receivers", "escalations"}),
            escalations=tuple((step.after_minutes, tuple(step.receivers)) for step in values.escalations),
            days=tuple(values.days),
            receivers=tuple(values.receivers),
        ),
        place=values.place,
        reason=values.reason,
        actor=actor_of(request),
    )
    return AlertRouteOut.model_validate(row)


@router.delete("/{route}", response=Done, auth=needs("manage_receivers"))
def delete_route(request: HttpRequest, environment: Environment, route: Slug, reason: Reason) -> Done:
    """Remove a route. The default cannot be removed."""
    remove_route(environment=environment, name=route, reason=reason, actor=actor_of(request))
    return Done()
