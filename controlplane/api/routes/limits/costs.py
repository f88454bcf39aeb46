"""The usage and the costs of language models."""

from datetime import UTC, date
from typing import Annotated, Literal

from django.http import HttpRequest
from django.utils import timezone
from ninja import Path, Query, Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.costs import CostsFound, CostsOut, InvoiceIn, InvoiceOut, InvoicesOut
from controlplane.api.schemas.edits_in import Environment, Reason, Slug
from controlplane.errors import InvalidEdit
from controlplane.ledger.invoices import read_drifts, remove_invoice, set_invoice
from controlplane.ledger.reading import Wanted, month_of, read_costs, read_summary
from controlplane.policies.document import environment_of

router = Router()

Month = Annotated[str, Path(pattern=r"^[0-9]{4}-[0-9]{2}$", description="A month, 2026-11.")]

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


@router.get("/invoices", response=InvoicesOut)
def list_invoices(request: HttpRequest, environment: Environment) -> InvoicesOut:
    """The invoices of vendors, with the ledger of their account and month: the newest 1,000."""
    return _shown(environment_of(environment).slug)


@router.put("/invoices/{account}/{month}", response=InvoicesOut, auth=needs("edit_quota"))
def put_invoice(
    request: HttpRequest, environment: Environment, account: Slug, month: Month, values: InvoiceIn
) -> InvoicesOut:
    """Enter what a vendor charged for an account and a month that is over, or correct it."""
    set_invoice(
        environment=environment,
        account=account,
        month=_first(month),
        micro_usd=values.micro_usd,
        reason=values.reason,
        actor=actor_of(request),
    )
    return _shown(environment)


@router.delete("/invoices/{account}/{month}", response=InvoicesOut, auth=needs("edit_quota"))
def delete_invoice(
    request: HttpRequest, environment: Environment, account: Slug, month: Month, reason: Reason
) -> InvoicesOut:
    """Remove an invoice."""
    remove_invoice(
        environment=environment,
        account=account,
        month=_first(month),
        reason=reason,
        actor=actor_of(request),
    )
    return _shown(environment)


def _shown(environment: str) -> InvoicesOut:
    found = read_drifts(environment, most=MAX_LINES)
    return InvoicesOut(invoices=[InvoiceOut.model_validate(one) for one in found])


def _first(month: str) -> date:
    try:
        return date.fromisoformat(f"{month}-01")
    except ValueError:
        raise InvalidEdit({"month": ["Enter a month, such as 2026-11."]}) from None
