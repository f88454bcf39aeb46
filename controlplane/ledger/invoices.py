"""Invoices of vendors, and how far the ledger is from them."""

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Min, Q, Sum
from django.db.models.functions import TruncMonth

from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import find
from controlplane.ledger.models import Invoice, UsageDay, UsageTotal
from controlplane.policies.document import environment_of
from controlplane.spending.models import Account
from controlplane.validation import Problems
from fuseboard.contract.budgets import MAX_BUDGET, MICRO_USD

#: The last months that are over whose invoices can alert: the books of a year ago are closed.
ALERTING_MONTHS = 3
#: Vendors round an invoice to cents. A difference below one is no drift.
_CENT = 10_000


@dataclass(frozen=True, kw_only=True)
class Entered:
    """An invoice, and the dependencies whose calls it is about."""

    account: str
    month: date
    micro_usd: int
    pools: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """An invoice, and the ledger of its month. Amounts are micro-USD."""

    account: str
    #: The first day of the month.
    month: date
    invoiced: int
    ledger: int
    #: The first day of the ledger; ``None`` before any call.
    counted_from: date | None

    @property
    def is_whole(self) -> bool:
        """Whether the ledger began before the month. The invoice of another month says nothing about it."""
        return self.counted_from is not None and self.counted_from <= self.month

    @property
    def share(self) -> float:
        """The part of the invoice by which the ledger is above it, or below it if negative."""
        more = self.ledger - self.invoiced
        if abs(more) < _CENT:
            return 0.0
        return more / self.invoiced if self.invoiced else 1.0

    @property
    def size(self) -> float:
        return abs(self.share)


def set_invoice(
    *, environment: str, account: str, month: date, micro_usd: int, reason: str, actor: Actor
) -> None:
    """Enter the total of a month that is over, or correct it. Raises ``InvalidEdit`` and ``NotFound``."""
    row = environment_of(environment)
    problems = Problems()
    problems.reason(reason)
    problems.whole("micro_usd", micro_usd, 0, MAX_BUDGET)
    months = months_to_enter()
    first = month.replace(day=1)
    if first not in months:
        problems.add("month", _which(months))
    problems.settle()
    find(Account.objects.filter(environment=row), "account", name=account)
    with transaction.atomic():
        named: dict[str, Any] = {"environment": environment, "account": account, "month": first}
        before = Invoice.objects.select_for_update().filter(**named).first()
        Invoice.objects.update_or_create(**named, defaults={"micro_usd": micro_usd})
        record(
            actor=actor,
            action="invoice.set",
            target_kind="account",
            target_name=account,
            before=None if before is None else _fields(before.month, before.micro_usd),
            after=_fields(first, micro_usd),
            reason=reason,
            environment=environment,
        )


def remove_invoice(*, environment: str, account: str, month: date, reason: str, actor: Actor) -> None:
    """Remove it. Raises ``InvalidEdit`` and ``NotFound``."""
    slug = environment_of(environment).slug
    problems = Problems()
    problems.reason(reason)
    problems.settle()
    with transaction.atomic():
        rows = Invoice.objects.select_for_update().filter(environment=slug, month=month.replace(day=1))
        row = find(rows, "invoice", account=account)
        row.delete()
        record(
            actor=actor,
            action="invoice.removed",
            target_kind="account",
            target_name=account,
            before=_fields(row.month, row.micro_usd),
            after=None,
            reason=reason,
            environment=slug,
        )


def months_to_enter() -> list[date]:
    """The first days of the months that are over and that the ledger keeps as a whole, the newest first."""
    today = datetime.now(UTC).date()
    month, oldest = _before(today), today - timedelta(days=settings.LEDGER_KEPT_DAYS_D)
    found = []
    while month >= oldest:
        found.append(month)
        month = _before(month)
    return found


def read_entered(environment: str, *, months: Sequence[date], most: int | None = None) -> tuple[Entered, ...]:
    """The invoices of these months, the newest first. Those of an account that was removed have no pools."""
    pools = dict(Account.objects.filter(environment=environment).values_list("name", "pools"))
    rows = Invoice.objects.filter(environment=environment, account__in=pools, month__in=months)
    return tuple(
        Entered(
            account=row.account, month=row.month, micro_usd=row.micro_usd, pools=tuple(pools[row.account])
        )
        for row in rows.order_by("-month", "account")[:most]
    )


def compare(environment: str, entered: Sequence[Entered]) -> tuple[Drift, ...]:
    """The ledger beside these invoices. It sums the days of their months, in one statement."""
    if not entered:
        return ()
    sums = _sums(environment, {one.month for one in entered}, {pool for one in entered for pool in one.pools})
    began = UsageTotal.objects.filter(environment=environment).aggregate(day=Min("day"))["day"]
    return tuple(
        Drift(
            account=one.account,
            month=one.month,
            invoiced=one.micro_usd,
            ledger=sum(sums.get((one.month, pool), 0) for pool in one.pools),
            counted_from=began,
        )
        for one in entered
    )


def read_drifts(environment: str, *, most: int) -> tuple[Drift, ...]:
    """The newest invoices, with the ledger beside them."""
    return compare(environment, read_entered(environment, months=months_to_enter(), most=most))


def _sums(environment: str, months: set[date], pools: set[str]) -> dict[tuple[date, str], int]:
    """Month and dependency -> micro-USD."""
    ranges = Q(*[("day__range", (month, _last(month))) for month in months], _connector=Q.OR)
    days = UsageDay.objects.filter(ranges, environment=environment, dependency__in=pools)
    rows = days.values_list(TruncMonth("day"), "dependency").annotate(cost=Sum("micro_usd")).order_by()
    return {(month, dependency): int(cost) for month, dependency, cost in rows}


def _which(months: Sequence[date]) -> str:
    if not months:
        return "The ledger keeps no whole month that is over: raise FUSEBOARD_LEDGER_DAYS_D."
    return f"Enter a month that is over, from {months[-1]:%Y-%m} to {months[0]:%Y-%m}."


def _before(day: date) -> date:
    """The first day of the month before."""
    return (day.replace(day=1) - timedelta(days=1)).replace(day=1)


def _last(month: date) -> date:
    return month.replace(day=monthrange(month.year, month.month)[1])


def _fields(month: date, micro_usd: int) -> dict[str, object]:
    """An entry of the audit, whose amount people read in the unit of its measure."""
    return {"month": f"{month:%Y-%m}", "amount": micro_usd, "measure": MICRO_USD}
