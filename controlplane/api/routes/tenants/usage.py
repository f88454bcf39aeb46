"""Requests of tenants, and what an edit would have changed for them."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema
from pydantic import BeforeValidator, Field

from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.http.one_at_a_time import one_at_a_time
from controlplane.api.http.uploads import upload_of
from controlplane.api.routes.tenants.plans import FILE
from controlplane.api.schemas.edits_in import Environment, Moment, PageSize, Slug, Subject, digits
from controlplane.editing.plans import read_plan
from controlplane.policies.document import environment_of
from controlplane.usage.models import Demand, RuleDemand
from controlplane.usage.rollups import ALL_TENANTS
from controlplane.usage.what_if import what_if, what_if_shadow

tenants = Router()
router = Router()

_Row = TypeVar("_Row", bound=Model)
Grain = Literal["10s", "minute", "hour"]
_GRAINS = {"10s": 10, "minute": 60, "hour": 3600}
Days = Annotated[
    int, BeforeValidator(digits), Field(ge=1, le=31, description="How many days back to replay.")
]


class DemandOut(Schema):
    """Requests in a span of time, allowed or not; ``refused`` of them got 429."""

    at: datetime
    asked: int
    refused: int


class TenantOutcomeOut(Schema):
    tenant: str
    asked: int
    refused_before: int
    refused_after: int


class RuleDemandOut(DemandOut):
    """Requests under one rule; ``shadow`` is what a shadow rule would have refused."""

    rule: str
    shadow: int


class RuleOutcomeOut(Schema):
    rule: str
    asked: int
    refused_before: int
    refused_after: int


class CountedOut(Schema):
    """What pods counted for one limit; ``shadow`` is what a shadow limit would have refused."""

    asked: int
    refused: int
    shadow: int
    since: datetime


class WhatIfOut(Schema):
    """The last days, replayed without and with the change."""

    days: int
    #: Minutes of those days with measurements; the rest is unknown.
    minutes_known: int
    coverage_percent: float
    asked: int
    refused_before: int
    refused_after: int
    #: Requests per second that were allowed in the busiest minute of the whole cluster.
    peak_before: float
    peak_after: float
    #: When that is, after the edit; Unix seconds.
    peak_at: int | None
    #: The part of it from tenants that are not edited, per second.
    others_at_peak: float
    #: Edited tenants without any measured request.
    unmeasured: int
    #: Edited tenants with measurements, largest difference first.
    tenants: list[TenantOutcomeOut]
    #: The edited limits, each replayed with the requests under it.
    rules: list[RuleOutcomeOut]
    #: Only shadow limits have it, and only where pods have counted it.
    counted: CountedOut | None


@tenants.get("/{path:tenant}/usage", response=list[DemandOut])
def get_usage(
    request: HttpRequest,
    environment: Environment,
    tenant: Subject,
    since: Moment | None = None,
    until: Moment | None = None,
    grain: Grain = "minute",
    limit: PageSize = 100,
) -> Any:
    """Oldest first, from ``since`` on, by default the last hour. Times without measurements are left out."""
    kept = Demand.objects.filter(environment=environment_of(environment).slug, tenant=tenant)
    return _part(kept, since, until, grain)[:limit]


@tenants.get("/{path:tenant}/usage/{rule}", response=list[RuleDemandOut])
def get_usage_of_rule(
    request: HttpRequest,
    environment: Environment,
    tenant: Subject,
    rule: Slug,
    since: Moment | None = None,
    until: Moment | None = None,
    grain: Grain = "minute",
    limit: PageSize = 100,
) -> Any:
    """Requests under one quota of it, oldest first. Tenant ``-`` means all tenants together."""
    kept = RuleDemand.objects.filter(
        environment=environment_of(environment).slug,
        tenant=ALL_TENANTS if tenant == "-" else tenant,
        rule=rule,
    )
    return _part(kept, since, until, grain)[:limit]


def _part(kept: QuerySet[_Row], since: Moment | None, until: Moment | None, grain: Grain) -> QuerySet[_Row]:
    """Stored measurements of a span of time, oldest first; without an end, up to now."""
    rows = kept.filter(grain_s=_GRAINS[grain], at__gte=since or timezone.now() - timedelta(hours=1))
    if until:
        rows = rows.filter(at__lt=until)
    return rows.order_by("at")


@tenants.get("/{path:tenant}/quotas/{quota}/what-if", response=WhatIfOut)
def replay_shadow(
    request: HttpRequest, environment: Environment, tenant: Subject, quota: Slug, days: Days = 7
) -> Any:
    """What a shadow limit of the tenant would have refused if it were active."""
    return what_if_shadow(environment_of(environment).slug, tenant, quota, days=days)


@router.post("/what-if", response=WhatIfOut, openapi_extra=FILE)
@changes_nothing
@one_at_a_time
def replay_plan(request: HttpRequest, environment: Environment, days: Days = 7) -> WhatIfOut:
    """Replay the last days without and with a file; changes nothing.

    Each caller gets one plan, apply, preview, or what-if at a time. A file of more than 1 MiB needs the right
    to edit quotas.
    """
    stream, _ = upload_of(request)
    return WhatIfOut.model_validate(what_if(environment_of(environment).slug, read_plan(stream), days=days))
