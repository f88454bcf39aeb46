"""Requests that pods allowed without Redis in an outage, and how many of them were over the limits."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.phrases import amount_words, count, listed
from controlplane.policies.models import Tenant
from controlplane.reconciliation.outages import KEPT, SINGLE_DECISIONS, Outage, outages
from controlplane.reconciliation.report import (
    LONGEST,
    NOT_AMONG_ALLOWED,
    Certainty,
    Line,
    Report,
    reconciled,
)
from controlplane.series.kinds import FLEET
from controlplane.series.reading import read
from dashboard.views.page import show, text_parameter

#: Without an outage, the page is about this time.
_LAST = timedelta(hours=24)
_UNKNOWN = "unknown"
#: Tenants that an error names, and limits that the answer about one tenant names.
_MAX_NEAR, _MAX_NAMED = 5, 3
#: Why it is not known how many were over a limit.
_WHY_UNKNOWN = "what Redis allowed beside them is not known"
_WHY_SHORT = "the window of the limit is shorter than a minute"


@dataclass(frozen=True, kw_only=True)
class OutageRow:
    outage: Outage
    href: str
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class LineRow:
    line: Line
    without: str
    both: str
    capacity: str
    over: str
    at_most: str

    @property
    def measure(self) -> str:
        return self.line.measure or "calls"

    @property
    def raw_both(self) -> int | str:
        return _UNKNOWN if self.line.with_redis is None else self.line.with_redis

    @property
    def raw_capacity(self) -> int | str:
        return _UNKNOWN if self.line.capacity is None else self.line.capacity

    @property
    def raw_over(self) -> int | str:
        over = self.line.over
        return _UNKNOWN if over is None or self.line.certainty is Certainty.UNKNOWN else over

    @property
    def in_bursts(self) -> bool:
        """Whether the sum is within what the limit allows in this time, and single windows may not be."""
        line = self.line
        if line.capacity is None or line.with_redis is None:
            return False
        return line.over_at_most > 0 and line.without_redis + line.with_redis <= line.capacity

    @property
    def css(self) -> str:
        return "st-warn" if self.line.over and not self.line.shadow else ""


@require_GET
@require_role("viewer")
def reconciliation(request: HttpRequest) -> HttpResponse:
    now, environment = timezone.now(), environment_in(request)
    found = outages(environment, now)
    asked = text_parameter(request, "tenant").strip()
    tenant, unknown = _tenant(environment, asked)
    # The page of a tenant leads here from its last day.
    since, until, problem = _asked(request, [] if tenant else found, now)
    report = reconciled(environment, since, until, tenant)
    during = any(outage.overlaps(since, until) for outage in found)
    return show(
        request,
        "reconciliation",
        "reconciliation.html",
        outages=[_outage_row(outage, since, now, tenant) for outage in found],
        asked=asked,
        tenant=tenant,
        unknown=unknown,
        answer=_answer(tenant, report) if tenant else "",
        given={name: request.GET[name] for name in ("since", "until") if request.GET.get(name)},
        # Without an outage in this time, pods decided alone only where one answer of Redis was missing.
        single=SINGLE_DECISIONS if report.without_redis and not during and since >= now - KEPT else "",
        report=report,
        without=report.allowed.words,
        over=amount_words(report.over_calls, "calls"),
        decided=_decided_words(environment, report) if not tenant else "",
        rows=[_row(line) for line in report.lines],
        problem=problem,
        kept_days=LONGEST.days,
        status=400 if problem else 200,
    )


def _asked(request: HttpRequest, found: list[Outage], now: datetime) -> tuple[datetime, datetime, str]:
    """The time in the address; without one, the last outage, or the last day."""
    given = text_parameter(request, "since"), text_parameter(request, "until")
    newest = (found[0].begin, found[0].until(now)) if found else (now - _LAST, now)
    if not any(given):
        return *newest, ""
    since, until = _moment(given[0]), _moment(given[1]) if given[1] else now
    if since is None or until is None:
        return *newest, "Enter since and until as times with a time zone, like 2026-05-04T10:00:00Z."
    if not since < until <= since + LONGEST:
        return *newest, f"Enter a since before until, at most {LONGEST.days} days before it."
    return since, until, ""


def _moment(text: str) -> datetime | None:
    try:
        moment = parse_datetime(text)
    except ValueError:
        return None
    if moment is None or moment.tzinfo is None or not 2000 <= moment.year <= 2999:
        return None
    return moment


def _tenant(environment: str, asked: str) -> tuple[str, str]:
    """The tenant that a person typed, in full or as the only one with these letters; or what is wrong."""
    if not asked:
        return "", ""
    keys = Tenant.objects.filter(environment=environment).order_by("key").values_list("key", flat=True)
    if keys.filter(key=asked).exists():
        return asked, ""
    near = list(keys.filter(key__icontains=asked, deleted=False)[: _MAX_NEAR + 1])
    if len(near) == 1:
        return near[0], ""
    rest = f" Several have this in their name: {listed(near, _MAX_NEAR)}." if near else ""
    return "", f"There is no tenant {asked}.{rest}"


def _answer(tenant: str, report: Report) -> str:
    """One sentence or two: what pods allowed a tenant without Redis, and how much of it was over its limits.

    A call that several limits count is in the report of each of them.
    """
    lines = [line for line in report.lines if not line.shadow]
    if not lines:
        late = "" if report.complete else " Pods may not have reported all of them yet."
        return f"Pods allowed no call of {tenant} without Redis.{late}"
    amount = report.allowed.words if report.without_redis else "costs of calls"
    said = f"Pods allowed {amount} of {tenant} without Redis, under {count(len(lines), 'limit')}."
    over = [line for line in lines if line.over_at_most]
    if not over:
        return f"{said} None was over a limit."
    return f"{said} Over a limit: {'; '.join(map(_over_words, over[:_MAX_NAMED]))}{_more_words(over)}."


def _decided_words(environment: str, report: Report) -> str:
    """Say what pods decided in the same time, as reports of incidents do: it is more than limits count."""
    found = read(environment, FLEET, fields=("decided_locally",), start=report.since, end=report.until)
    decided = found.total("decided_locally")
    if not decided:
        return ""
    return f"In this time, pods decided {amount_words(decided, 'calls')} locally. {NOT_AMONG_ALLOWED}"


def _over_words(line: Line) -> str:
    of = f" of {line.dependency}" if line.dependency else ""
    measure = line.measure or "calls"
    possibly = amount_words(line.over_at_most, measure)
    if line.certainty is Certainty.EXACT:
        return f"{line.rule}{of}, exactly {possibly}"
    surely = "an unknown number" if line.certainty is Certainty.UNKNOWN else f"{line.over or 0:,}"
    why = _WHY_UNKNOWN if line.with_redis is None else _WHY_SHORT
    return f"{line.rule}{of}, surely {surely} and possibly up to {possibly} ({why})"


def _more_words(over: list[Line]) -> str:
    more = len(over) - _MAX_NAMED
    return f"; and {count(more, 'more limit')}" if more > 0 else ""


def _outage_row(outage: Outage, since: datetime, now: datetime, tenant: str) -> OutageRow:
    query = {"since": outage.begin.isoformat(), "until": outage.until(now).isoformat()}
    href = f"{reverse('reconciliation')}?{urlencode(query | ({'tenant': tenant} if tenant else {}))}"
    return OutageRow(outage=outage, href=href, chosen=outage.begin == since)


def _row(line: Line) -> LineRow:
    def quantity(amount: int | None) -> str:
        return _UNKNOWN if amount is None else amount_words(amount, line.measure or "calls")

    return LineRow(
        line=line,
        without=quantity(line.without_redis),
        both=quantity(line.with_redis),
        capacity=quantity(line.capacity),
        over=_UNKNOWN if line.certainty is Certainty.UNKNOWN else f"{line.over:,}",
        at_most=f"{line.over_at_most:,}",
    )
