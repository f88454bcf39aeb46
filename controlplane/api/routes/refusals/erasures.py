"""Erases what is stored about one caller."""

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.edits_in import Environment, ReasonIn, Subject
from controlplane.erasure import erase

router = Router(auth=needs("erase"))


class EraseIn(ReasonIn):
    kind: Annotated[
        Literal["ip", "user", "api_key", "tenant"],
        Field(description="`tenant` is also for a caller that is not registered."),
    ]
    value: Annotated[Subject, Field(description="As the service passes it.")]


class ErasedOut(Schema):
    #: Samples of refusals; then, of a tenant, its series, the rows of its demand, and its counts of outages.
    samples: int
    series: int
    demand: int
    without_redis: int
    #: Stored top lists of refusals that do not name the tenant any more.
    top_lists: int = 0
    #: Resolved alerts of a tenant, deleted with their messages, or left without its name.
    alerts: int
    #: Saved views of people: deleted if they filter by the tenant, renamed if only their name contains it.
    views: int
    #: The network that pods count an IPv6 address by. The samples of all its addresses are deleted.
    network: str = ""


@router.post("", response=ErasedOut)
def erase_caller(request: HttpRequest, environment: Environment, values: EraseIn) -> ErasedOut:
    """Delete what is stored about an address, a login, an API key, or a tenant.

    An IPv6 address is erased with its network, because pods report the network only. These are samples of
    refusals; of a tenant, also its figures over time, the demand of what-if, resolved alerts, and saved
    views that filter by it. The configuration and the audit stay. The audit gets an entry without the name of
    the caller. Pods and gateways write figures and samples of the last minute later: erase the caller again
    after two minutes.
    """
    return ErasedOut.model_validate(
        erase(environment=environment, actor=actor_of(request), **values.model_dump())
    )
