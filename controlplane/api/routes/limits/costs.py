"""The usage and the costs of language models."""

from datetime import UTC, date
from typing import Annotated, Literal

from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Router

from controlplane.api.schemas.costs import CostsFound, CostsOut
from controlplane.api.schemas.edits_in import Environment
from controlplane.errors import InvalidEdit
from controlplane.ledger.reading import Wanted, month_of, read_costs, read_summary
from controlplane.policies.document import environment_of

router = Router()

#: Lines of one answer.
MAX_LINES = 1_000

_Group = Literal["model", "tenant", "service", "day"]
_Name = Annotated[
    str | None, Query(max_length=200, description="Only its calls; empty for those without a name.")
]
_Day = Annotated[date | None, Query(description="A day in UTC. By default, the range is the present month.")]


@router.get("", response=CostsOut)
def read(
    request: HttpRequest,
    environment: Environment,
    by: _Group = "model",
    since: _Day = None,
    until: _Day = None,
    model: _Name = None,
    tenant: _Name = None,
    service: _Name = None,
) -> CostsFound:
    """The usage and the costs of language models, the most expensive line first, at most 1,000 lines.

    `until` is the last day. Models with calls without a price come before the others. Days are in UTC, and
    stored for about 13 months; services for about 2. The ledger does not keep tenant and service of one call.
    """
    slug, now = environment_of(environment).slug, timezone.now()
    first, last = month_of(now.astimezone(UTC).date())
    start, end = since or first, until or max(last, since or first)
    if start > end:
        raise InvalidEdit({"since": ["Enter a day that is not after the last one."]})
    try:
        wanted = Wanted(by=by, since=start, until=end, model=model, tenant=tenant, service=service)
    except ValueError as error:
        raise InvalidEdit({"service": [str(error)]}) from None
    return CostsFound(
        wanted=wanted, costs=read_costs(slug, wanted, most=MAX_LINES), summary=read_summary(slug, now)
    )
