"""Reads the ledger: what calls to models used and cost, by model, tenant, service or day."""

from calendar import monthrange
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Case, F, Max, Min, QuerySet, Sum, When
from django.db.models.functions import TruncDate

from controlplane.ledger.models import UsageDay, UsageHour, UsageReceipt, UsageTotal, Whose
from controlplane.ledger.rows import AMOUNTS

#: The things that lines can be about.
GROUPS = ("model", "tenant", "service", "day")
#: Whole days whose mean a projection continues.
RECENT_D = 7
#: Weeks whose same hour says what is usual, and the sum of an hour below which nothing jumps.
USUAL_WEEKS = 4
MIN_JUMP_MICRO_USD = 5_000_000
#: Models without a price that are named.
MAX_UNPRICED = 20

_USERS = """
    SELECT model, sum(cost), count(*) FILTER (WHERE tenant <> ''),
           (array_agg(tenant ORDER BY cost DESC, tokens DESC, tenant) FILTER (WHERE tenant <> ''))[1:2]
    FROM (
        SELECT model, tenant, sum(micro_usd) AS cost, sum(output) AS tokens FROM ledger_usageday
        WHERE environment = %s AND day BETWEEN %s AND %s GROUP BY model, tenant
    ) AS used
    GROUP BY model
"""
_SUMS: dict[str, Any] = {f"sum_{name}": Sum(name) for name in AMOUNTS}


@dataclass(frozen=True, kw_only=True)
class Sums:
    """See ``fuseboard.contract.usage.UsageRow``."""

    calls: int = 0
    fresh: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    micro_usd: int = 0
    wasted: int = 0
    wasted_micro_usd: int = 0
    estimated: int = 0
    estimated_micro_usd: int = 0
    unpriced: int = 0
    saved_micro_usd: int = 0

    @property
    def input(self) -> int:
        return self.fresh + self.cached + self.written

    @property
    def cached_share(self) -> float:
        return self.cached / self.input if self.input else 0.0


@dataclass(frozen=True, kw_only=True)
class Line(Sums):
    #: The model, tenant or service; empty for what has no name. The day, as 2026-11-29.
    name: str
    #: The dependency of a model.
    dependency: str = ""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A part of the ledger, and what its lines are about. ``None`` is any; empty is what has no name."""

    by: str
    since: date
    #: The last day.
    until: date
    model: str | None = None
    tenant: str | None = None
    service: str | None = None

    def __post_init__(self) -> None:
        if self.by not in GROUPS:
            raise ValueError(f"Choose one of: {', '.join(GROUPS)}.")
        if self._by_hours and (self.tenant is not None or self.by == "tenant"):
            raise ValueError("Choose a tenant or a service: the ledger does not keep both of one call.")

    @property
    def _by_hours(self) -> bool:
        return self.by == "service" or self.service is not None

    def kept_from(self, now: datetime) -> date:
        """The first day of which the ledger still has every call. It keeps services for a shorter time."""
        if self._by_hours:
            oldest = now.astimezone(UTC) - timedelta(days=settings.LEDGER_KEPT_HOURS_D)
            return oldest.date() + timedelta(days=1)
        return (now.astimezone(UTC) - timedelta(days=settings.LEDGER_KEPT_DAYS_D)).date()

    def rows(self, environment: str) -> QuerySet[Any]:
        if self._by_hours:
            found: QuerySet[Any] = UsageHour.objects.filter(
                environment=environment,
                whose=Whose.SERVICE,
                at__gte=midnight(self.since),
                at__lte=datetime.combine(self.until, time.max, UTC),
            )
            if self.service is not None:
                found = found.filter(name=self.service)
        else:
            found = UsageDay.objects.filter(environment=environment, day__gte=self.since, day__lte=self.until)
            if self.tenant is not None:
                found = found.filter(tenant=self.tenant)
        return found if self.model is None else found.filter(model=self.model)

    def grouped(self, environment: str) -> QuerySet[Any]:
        rows = self.rows(environment)
        if self.by == "day":
            day = TruncDate("at", tzinfo=UTC) if self._by_hours else F("day")
            days: QuerySet[Any] = rows.values(line=day).annotate(**_SUMS)
            return days.order_by("-line")
        names = {"model": ("model", "dependency"), "tenant": ("tenant",), "service": ("name",)}[self.by]
        order = ("-sum_micro_usd", "-sum_output", "-sum_fresh", *names)
        found: QuerySet[Any] = rows.values(*names).annotate(**_SUMS)
        if self.by == "model":
            # A cost that is not known is worse than one that is high.
            found = found.annotate(known=Case(When(sum_unpriced__gt=0, then=0), default=1))
            order = ("known", *order)
        return found.order_by(*order)


@dataclass(frozen=True, kw_only=True)
class Costs:
    lines: Sequence[Line]
    #: There are more lines.
    cut: bool
    #: The sum of all lines, listed or not.
    total: Sums


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The present month and the present day, in UTC."""

    month: Sums
    today: Sums
    #: Micro-USD at the end of the month, if each day costs what the last ones did; ``None`` if no whole day
    #: is known.
    projected: int | None


@dataclass(frozen=True, kw_only=True)
class Unpriced:
    model: str
    dependency: str
    calls: int


@dataclass(frozen=True, kw_only=True)
class Users:
    """The calls of one model in a month."""

    micro_usd: int
    #: The number of tenants, and the names of the two most expensive ones.
    tenants: int
    first: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SpendJump:
    """The hour of the last two that is most above what is usual in it."""

    #: Its start, in unix seconds.
    at: float
    micro_usd: int
    usual_micro_usd: int
    #: The model that cost most.
    model: str

    @property
    def times(self) -> float:
        """How many times what is usual. Below a few dollars, nothing is unusual."""
        return self.micro_usd / max(self.usual_micro_usd, MIN_JUMP_MICRO_USD / 3)


def month_of(day: date) -> tuple[date, date]:
    """The first and the last day of its month."""
    return day.replace(day=1), day.replace(day=monthrange(day.year, day.month)[1])


def read_costs(environment: str, wanted: Wanted, *, most: int) -> Costs:
    rows = list(wanted.grouped(environment)[: most + 1])
    total = wanted.rows(environment).aggregate(**_SUMS)
    return Costs(
        lines=[_line(wanted.by, row) for row in rows[:most]], cut=len(rows) > most, total=_sums(total)
    )


def read_summary(environment: str, now: datetime) -> Summary:
    today = now.astimezone(UTC).date()
    first, last = month_of(today)
    totals = UsageTotal.objects.filter(environment=environment)
    month = totals.filter(day__range=(first, last)).aggregate(**_SUMS)
    day = totals.filter(day=today).aggregate(**_SUMS)
    recent = totals.filter(day__range=(today - timedelta(days=RECENT_D), today - timedelta(days=1)))
    # Days without a call cost nothing, but those before the first call say nothing.
    began = totals.aggregate(first=Min("day"))["first"]
    known = min((today - began).days, RECENT_D) if began is not None else 0
    projected = None
    if known > 0:
        per_day = int(recent.aggregate(cost=Sum("micro_usd"))["cost"] or 0) / known
        left = (midnight(last + timedelta(days=1)) - now).total_seconds() / 86_400
        projected = round(_sums(month).micro_usd + per_day * left)
    return Summary(month=_sums(month), today=_sums(day), projected=projected)


def read_spent_today(environment: str, now: datetime) -> int | None:
    """Micro-USD since midnight in UTC; ``None`` without a call."""
    rows = UsageTotal.objects.filter(environment=environment, day=now.astimezone(UTC).date())
    found = rows.values_list("micro_usd", flat=True).first()
    return None if found is None else int(found)


def read_spent_since(environment: str, since: datetime, *, dependencies: Sequence[str]) -> int:
    """Micro-USD of calls to these dependencies, in the whole hours after ``since``."""
    rows = UsageHour.objects.filter(
        environment=environment,
        whose=Whose.SERVICE,
        at__gte=first_hour(since),
        dependency__in=list(dependencies),
    )
    return int(rows.aggregate(cost=Sum("micro_usd"))["cost"] or 0)


def read_tenants_since(environment: str, since: datetime, tenants: Collection[str]) -> dict[str, int]:
    """Tenant -> micro-USD of its calls in the whole hours or days after ``since``; absent without a call.

    The ledger has the tenants of each day; of an older hour, only the most expensive ones.
    """
    hour = first_hour(since)
    rows: QuerySet[Any]
    if datetime.now(UTC) - since < timedelta(hours=2):
        hours = UsageHour.objects.filter(environment=environment, at__gte=hour, whose=Whose.TENANT)
        rows = hours.filter(name__in=tenants).annotate(tenant=F("name"))
    else:
        day = hour.date() if hour == midnight(hour.date()) else hour.date() + timedelta(days=1)
        rows = UsageDay.objects.filter(environment=environment, tenant__in=tenants, day__gte=day)
    costs = rows.values("tenant").annotate(cost=Sum("micro_usd")).order_by()
    return {tenant: int(cost) for tenant, cost in costs.values_list("tenant", "cost")}


def busiest_tenants(environment: str, now: datetime, *, most: int, among: QuerySet[Any]) -> list[str]:
    """The tenants of these that spent most in this day or the last one, in UTC."""
    rows = UsageDay.objects.filter(
        environment=environment, day__gte=now.astimezone(UTC).date() - timedelta(days=1)
    )
    found = rows.filter(tenant__in=among).values("tenant").annotate(cost=Sum("micro_usd"))
    return list(found.order_by("-cost", "tenant").values_list("tenant", flat=True)[:most])


def read_months(environment: str) -> list[date]:
    """The first days of the months with a call, the newest first."""
    return list(UsageTotal.objects.filter(environment=environment).dates("day", "month", order="DESC"))


def read_last_report(environment: str) -> datetime | None:
    """When the last pod reported what it used. The calls since then are not in the ledger yet."""
    found = UsageReceipt.objects.filter(environment=environment).aggregate(at=Max("at"))["at"]
    return found if isinstance(found, datetime) else None


def read_unpriced(environment: str, now: datetime) -> tuple[Unpriced, ...]:
    """The models that had calls without a price in this hour or the last one, the busiest first."""
    last = begun_hour(now) - timedelta(hours=1)
    rows = UsageHour.objects.filter(
        environment=environment, whose=Whose.SERVICE, at__gte=last, unpriced__gt=0
    )
    found = rows.values("model", "dependency").annotate(calls_unpriced=Sum("unpriced"))
    return tuple(
        Unpriced(model=row["model"], dependency=row["dependency"], calls=int(row["calls_unpriced"]))
        for row in found.order_by("-calls_unpriced", "model", "dependency")[:MAX_UNPRICED]
    )


def read_users(environment: str, now: datetime) -> dict[str, Users]:
    """Model -> who called it in the present month, in UTC."""
    first, last = month_of(now.astimezone(UTC).date())
    with connection.cursor() as cursor:
        cursor.execute(_USERS, [environment, first, last])
        rows = cursor.fetchall()
    return {
        model: Users(micro_usd=int(cost), tenants=number, first=tuple(names or ()))
        for model, cost, number, names in rows
    }


def read_jump(environment: str, now: datetime) -> SpendJump | None:
    """``None`` if nothing was spent, or the ledger does not know what is usual yet."""
    hours = [begun_hour(now), begun_hour(now) - timedelta(hours=1)]
    before = {hour: [hour - timedelta(weeks=week) for week in range(1, USUAL_WEEKS + 1)] for hour in hours}
    services = UsageHour.objects.filter(environment=environment, whose=Whose.SERVICE)
    all_hours = [*hours, *(earlier for found in before.values() for earlier in found)]
    rows = services.filter(at__in=all_hours).values("at").annotate(cost=Sum("micro_usd"))
    spent = {row["at"]: int(row["cost"]) for row in rows.order_by()}
    first = services.aggregate(first=Min("at"))["first"] if any(spent.get(hour) for hour in hours) else None
    jumps = []
    for hour in hours:
        known = [earlier for earlier in before[hour] if first is not None and earlier >= first]
        if known and spent.get(hour):
            usual = sum(spent.get(earlier, 0) for earlier in known) // len(known)
            model = services.filter(at=hour).values("model").annotate(cost=Sum("micro_usd"))
            most = model.order_by("-cost", "model").values_list("model", flat=True).first() or ""
            jumps.append(
                SpendJump(at=hour.timestamp(), micro_usd=spent[hour], usual_micro_usd=usual, model=most)
            )
    return max(jumps, key=lambda jump: jump.times, default=None)


def _line(by: str, row: dict[str, Any]) -> Line:
    name = {"model": "model", "tenant": "tenant", "service": "name", "day": "line"}[by]
    dependency = row["dependency"] if by == "model" else ""
    return Line(name=str(row[name]), dependency=dependency, **_numbers(row))


def _sums(row: dict[str, Any]) -> Sums:
    return Sums(**_numbers(row))


def _numbers(row: dict[str, Any]) -> dict[str, int]:
    return {field.name: int(row[f"sum_{field.name}"] or 0) for field in fields(Sums)}


def midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def first_hour(since: datetime) -> datetime:
    """The start of the first whole hour after it."""
    return since if since == begun_hour(since) else begun_hour(since) + timedelta(hours=1)


def begun_hour(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
