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
from controlplane.reconciliation.outages import KEPT, SINGLE_DECISIONS, Outage, outages
from controlplane.reconciliation.report import LONGEST, Certainty, Line, reconciled
from dashboard.views.page import show, text_parameter
from dashboard.words.rate_words import amount_words

#: Without an outage, the page is about this time.
_LAST = timedelta(hours=24)
_UNKNOWN = "unknown"


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
    def css(self) -> str:
        return "st-warn" if self.line.over and not self.line.shadow else ""


@require_GET
@require_role("viewer")
def reconciliation(request: HttpRequest) -> HttpResponse:
    now, environment = timezone.now(), environment_in(request)
    found = outages(environment, now)
    since, until, problem = _asked(request, found, now)
    report = reconciled(environment, since, until)
    during = any(outage.overlaps(since, until) for outage in found)
    return show(
        request,
        "reconciliation",
        "reconciliation.html",
        outages=[_outage_row(outage, since, now) for outage in found],
        # Without an outage in this time, pods decided alone only where one answer of Redis was missing.
        single=SINGLE_DECISIONS if report.without_redis and not during and since >= now - KEPT else "",
        report=report,
        without=amount_words(report.without_redis, "calls"),
        over=amount_words(report.over, "calls"),
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


def _outage_row(outage: Outage, since: datetime, now: datetime) -> OutageRow:
    query = urlencode({"since": outage.begin.isoformat(), "until": outage.until(now).isoformat()})
    href = f"{reverse('reconciliation')}?{query}"
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
