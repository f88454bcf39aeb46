"""What could explain an incident: edits, overrides, breakers, alerts and pods in one list, by time."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from dashboard.happenings import KINDS, PODS_WITHIN, Wanted, happenings
from dashboard.moments import moment_of
from dashboard.views.page import context_of, text_parameter

_PER_PAGE = 60
_PERIODS = (("1h", "1 hour"), ("6h", "6 hours"), ("24h", "24 hours"), ("7d", "7 days"))
_HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168}
_USUAL = "24h"


@require_GET
@require_role("viewer")
def changes(request: HttpRequest) -> HttpResponse:
    """Filtered by the parameters in the address: ``period`` ends at ``to``, or now."""
    filters = _filters(request)
    now = datetime.now(UTC)
    to, wrong = _moment(filters.get("to", ""))
    end = min(to or now, now + timedelta(minutes=1))
    start = end - timedelta(hours=_HOURS[filters.get("period", _USUAL)])
    # A page ends where the next one begins; the range stays.
    before, _ = _moment(text_parameter(request, "before"))
    wanted = Wanted(
        environment=environment_in(request),
        start=start,
        end=min(before, end) if before else end,
        most=_PER_PAGE,
        kind=filters.get("kind", ""),
        actor=filters.get("actor", ""),
        thing=filters.get("thing", ""),
    )
    found = happenings(wanted)
    shown = found[:_PER_PAGE]
    more = len(found) > _PER_PAGE
    context = context_of(request, "changes")
    context |= {
        "lines": shown,
        "start": start,
        "end": end,
        "periods": _PERIODS,
        "period": filters.get("period", _USUAL),
        "kinds": (("", "Any kind"), *KINDS.items()),
        "filters": filters,
        "filtered": bool(filters),
        "errors": {"to": [wrong]} if wrong else {},
        # Which pods did what is counted over a day at most.
        "without_pods": wanted.kind in ("", "pod") and end - start > PODS_WITHIN,
        "older": _with({**filters, "to": filters.get("to") or end.isoformat()}, shown[-1].at) if more else "",
    }
    return render(request, "dashboard/changes.html", context)


def _filters(request: HttpRequest) -> dict[str, str]:
    names = ("kind", "actor", "thing", "period", "to")
    asked = {name: text_parameter(request, name).strip() for name in names}
    known: dict[str, Collection[str]] = {"kind": KINDS, "period": _HOURS}
    return {name: value for name, value in asked.items() if value and value in known.get(name, (value,))}


def _with(filters: dict[str, str], before: datetime) -> str:
    return f"{reverse('changes')}?{urlencode({**filters, 'before': before.isoformat()})}"


def _moment(text: str) -> tuple[datetime | None, str]:
    """The moment, and what is wrong with it."""
    if not text:
        return None, ""
    try:
        return moment_of(text), ""
    except ValueError:
        return None, "Until: enter a date and a time in UTC, such as 2026-11-23T09:30."
