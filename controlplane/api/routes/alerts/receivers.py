"""Receivers of alerts: signed webhooks, chats, pagers and mail, and the log of deliveries."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from controlplane.alerts.delivery import receivers as edits
from controlplane.alerts.delivery.apprise.services import service_name
from controlplane.alerts.delivery.receivers import address_of
from controlplane.alerts.models import Delivery, Receiver
from controlplane.alerts.people.untested_receivers import untested_receivers
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas import FromObject
from controlplane.api.schemas.configuration_out import Done
from controlplane.api.schemas.edits_in import Environment, PageSize, Reason, ReasonIn, Slug
from controlplane.policies.document import environment_of

router = Router()


class ReceiverIn(ReasonIn):
    name: Slug
    #: ``https://`` for a signed webhook, or a URL of a service as apprise writes it: ``slack://...``.
    url: Annotated[str, Field(min_length=1, max_length=2_000)]
    #: 1: everything. 2: for people on call. 3: only what needs a person at once.
    least_level: Annotated[int, Field(ge=1, le=3)] = 2
    least_severity: Literal["warning", "critical"] = "warning"
    #: Whether it gets the weekly summary too. Pagers cannot.
    weekly: bool = False


class ReceiverOut(Schema):
    name: str
    #: ``webhook``, or the name of the service: ``Slack``.
    service: str
    #: Scheme, host, and the last four characters: the rest contains secrets.
    address: str
    least_level: int
    least_severity: Literal["warning", "critical"]
    #: Whether it gets the weekly summary too.
    weekly: bool
    #: Empty while it gets news.
    disabled_because: str
    #: Until then, the secret before the last change signs too.
    old_secret_until: datetime | None
    #: Why it is not certain that messages reach it; empty if one did within 30 days.
    warning: str


class WeeklyIn(ReasonIn):
    weekly: bool


class SecretOut(Schema):
    name: str
    #: The receiver checks signatures with it. Displayed only here. Empty if it is not a webhook.
    secret: str


class DeliveryOut(FromObject):
    #: The header ``webhook-id`` of every attempt.
    id: UUID
    receiver: str
    #: Null for a test, and for a weekly summary.
    alert: int | None
    kind: Literal["fired", "worsened", "escalated", "flapping", "stable", "resolved", "test", "weekly"]
    state: Literal["waiting", "sending", "sent", "gave_up", "superseded"]
    attempts: int
    #: The result of the last attempt.
    result: str
    created_at: datetime
    sent_at: datetime | None

    @staticmethod
    def resolve_receiver(row: Delivery) -> str:
        return row.receiver.name

    @staticmethod
    def resolve_alert(row: Delivery) -> int | None:
        return row.alert_id


@router.get("", response=list[ReceiverOut], auth=needs("manage_receivers"))
def list_receivers(request: HttpRequest, environment: Environment) -> list[ReceiverOut]:
    """The receivers of an environment, at most 50."""
    slug = environment_of(environment).slug
    warnings = untested_receivers(slug)
    return [
        ReceiverOut(
            name=row.name,
            service=service_name(row.url),
            address=address_of(row),
            least_level=row.least_level,
            least_severity="critical" if row.least_severity == "critical" else "warning",
            weekly=row.weekly,
            disabled_because=row.disabled_because,
            old_secret_until=row.old_secret_until,
            warning=warnings.get(row.pk, ""),
        )
        for row in Receiver.objects.filter(environment=slug).order_by("name")
    ]


@router.post("", response={201: SecretOut}, auth=needs("manage_receivers"))
def create_receiver(request: HttpRequest, environment: Environment, values: ReceiverIn) -> SecretOut:
    """Add a receiver. Copy the secret to a webhook: it is displayed only here."""
    row, secret = edits.add_receiver(
        environment=environment_of(environment).slug, actor=actor_of(request), **values.model_dump()
    )
    return SecretOut(name=row.name, secret=secret)


@router.delete("/{receiver}", response=Done, auth=needs("manage_receivers"))
def delete_receiver(request: HttpRequest, environment: Environment, receiver: Slug, reason: Reason) -> Done:
    """Remove a receiver and its log of deliveries."""
    edits.remove_receiver(
        environment=environment_of(environment).slug, name=receiver, reason=reason, actor=actor_of(request)
    )
    return Done()


@router.post("/{receiver}/secret", response=SecretOut, auth=needs("manage_receivers"))
def new_secret(request: HttpRequest, environment: Environment, receiver: Slug, values: ReasonIn) -> SecretOut:
    """Change the secret. For 24 hours, the old one signs too."""
    secret = edits.change_secret(
        environment=environment_of(environment).slug,
        name=receiver,
        reason=values.reason,
        actor=actor_of(request),
    )
    return SecretOut(name=receiver, secret=secret)


@router.post("/{receiver}/enable", response=Done, auth=needs("manage_receivers"))
def enable(request: HttpRequest, environment: Environment, receiver: Slug, values: ReasonIn) -> Done:
    """Send news again to a receiver that answered 410 Gone."""
    edits.enable_receiver(
        environment=environment_of(environment).slug,
        name=receiver,
        reason=values.reason,
        actor=actor_of(request),
    )
    return Done()


@router.put("/{receiver}/weekly", response=Done, auth=needs("manage_receivers"))
def set_weekly(request: HttpRequest, environment: Environment, receiver: Slug, values: WeeklyIn) -> Done:
    """Send the weekly summary to a receiver, or not any more."""
    edits.set_weekly(
        environment=environment_of(environment).slug,
        name=receiver,
        weekly=values.weekly,
        reason=values.reason,
        actor=actor_of(request),
    )
    return Done()


@router.post("/{receiver}/test", response={202: DeliveryOut}, auth=needs("manage_receivers"))
def test(request: HttpRequest, environment: Environment, receiver: Slug) -> DeliveryOut:
    """Send a test message. The list of deliveries displays its result."""
    row = edits.test_receiver(
        environment=environment_of(environment).slug, name=receiver, actor=actor_of(request)
    )
    row.refresh_from_db()
    return DeliveryOut.model_validate(row)


@router.get("/{receiver}/deliveries", response=list[DeliveryOut], auth=needs("manage_receivers"))
def list_deliveries(
    request: HttpRequest, environment: Environment, receiver: Slug, limit: PageSize = 100
) -> list[Delivery]:
    """Messages to a receiver, the newest first. They are kept for 30 days."""
    rows = Delivery.objects.filter(
        receiver__environment=environment_of(environment).slug, receiver__name=receiver
    )
    return list(rows.select_related("receiver").order_by("-created_at")[:limit])
