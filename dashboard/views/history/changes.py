"""Changes that could explain an incident: edits, overrides, breakers, alerts and pods, by time."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from dashboard.tables.list_filters import given_filters
from dashboard.views.history.change_log import KINDS, PODS_WITHIN, Wanted, changes_of
from dashboard.views.history.logged import LoggedChange
from dashboard.views.history.tabs import change_tabs
from dashboard.views.page import context_of, owned_by, text_parameter
from dashboard.words.moments import moment_of

_PER_PAGE = 60
_PERIODS = (("1h", "1 hour"), ("6h", "6 hours"), ("24h", "24 hours"), ("7d", "7 days"))
_HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168}
_USUAL = "24h"
_MAX_OF_A_MOMENT = 2_000
#: The resolution of a time in Postgres.
_RESOLUTION = timedelta(microseconds=1)


@require_GET
@require_role("viewer")
def changes(request: HttpRequest) -> HttpResponse:
    """Filtered by the parameters in the address: ``period`` ends at ``to``, or now."""
    filters = _filters(request)
    now = datetime.now(UTC)
    to, wrong = _moment(filters.get("to", ""))
    end = min(to or now, now + timedelta(minutes=1))
    start = end - timedelta(hours=_HOURS[filters.get("period", _USUAL)])
    # The range stays. A further page begins at the moment where the page before it ended, of which
    # that page has displayed some lines: one evaluation fires many alerts at once.
    before, _ = _moment(text_parameter(request, "before"))
    displayed = _whole(text_parameter(request, "displayed")) if before else 0
    wanted = Wanted(
        environment=environment_in(request),
        start=start,
        end=min(before + _RESOLUTION, end) if before else end,
        until=end,
        most=_PER_PAGE + displayed,
        kind=filters.get("kind", ""),
        actor=filters.get("actor", ""),
        thing=filters.get("thing", ""),
    )
    found = changes_of(wanted)[displayed:]
    shown = found[:_PER_PAGE]
    more = len(found) > _PER_PAGE
    context = context_of(request, "changes")
    context["own_dependencies"] = owned_by(environment_in(request), context["administered"])
    context |= {
        "tabs": change_tabs(request, "changes"),
        "lines": shown,
        "start": start,
        "end": end,
        "periods": _PERIODS,
        "period": filters.get("period", _USUAL),
        "kinds": (("", "Any kind"), *KINDS.items()),
        "filters": filters,
        "filtered": bool(filters),
        "errors": {"to": [wrong]} if wrong else {},
        # Events of pods are counted over a day at most.
        "without_pods": wanted.kind in ("", "pod") and end - start > PODS_WITHIN,
        "older": _older(filters, end, shown, before, displayed) if more else "",
    }
    return render(request, "dashboard/changes.html", context)


def _filters(request: HttpRequest) -> dict[str, str]:
    asked = given_filters(request, "kind", "actor", "thing", "period", "to")
    known: dict[str, Collection[str]] = {"kind": KINDS, "period": _HOURS}
    return {name: value for name, value in asked.items() if value in known.get(name, (value,))}


def _older(
    filters: dict[str, str], end: datetime, shown: list[LoggedChange], before: datetime | None, displayed: int
) -> str:
    """The address of the next page, which begins within the last moment of this one."""
    last = shown[-1].at
    displayed = sum(line.at == last for line in shown) + (displayed if last == before else 0)
    place = {"before": last.isoformat(), "displayed": displayed}
    return f"{reverse('changes')}?{urlencode({'to': end.isoformat(), **filters, **place})}"


def _whole(text: str) -> int:
    """Lines of one moment, at most as many as this page can be asked to read."""
    return min(int(text), _MAX_OF_A_MOMENT) if text.isascii() and text.isdigit() else 0


def _moment(text: str) -> tuple[datetime | None, str]:
    """The moment, and what is wrong with it."""
    if not text:
        return None, ""
    try:
        return moment_of(text), ""
    except ValueError:
        return None, "Until: enter a date and a time in UTC, such as 2026-11-23T09:30."
