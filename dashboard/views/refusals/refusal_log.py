"""The log of refusals by caller, rule, place and reason: counts, shares of samples, and the samples."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.refusals.samples import IN_FILE, samples_as_csv
from controlplane.refusals.words import REASONS
from controlplane.status.refusals import CountedRefusals, Filter, Line, breakdown, samples_of
from dashboard.tables.table_files import rows_listed
from dashboard.views.page import context_of, text_parameter
from fuseboard.contract.words import Reason

RANGES = (("15m", "Last 15 minutes"), ("1h", "Last hour"), ("6h", "Last 6 hours"), ("24h", "Last 24 hours"))
_MINUTES = {"15m": 15, "1h": 60, "6h": 360, "24h": 1440}
#: Samples on the page.
_SHOWN = 25
#: Parameter -> its dimension, and the heading of its table.
FILTERS = {
    "tenant": ("tenant", "Tenant"),
    "rule": ("rule", "Rule"),
    "endpoint": ("endpoint", "Endpoint"),
    "pod": ("server", "Pod"),
    "reason": ("reason", "Reason"),
    "dependency": ("dependency", "Dependency"),
    "tier": ("tier", "Tier"),
}


@dataclass(frozen=True)
class _Group:
    name: str
    heading: str
    lines: list[tuple[Line, str, str]]
    counts: bool


@require_GET
@require("view")
def refusals(request: HttpRequest) -> HttpResponse:
    """The filters are in the address: links, saved views and files have them."""
    given = _given(request)
    chosen = given.get("range", "1h")
    end = timezone.now()
    start = end - timedelta(minutes=_MINUTES[chosen])
    wanted = _filter(given)
    if request.GET.get("format") == "csv":
        return _file(environment_in(request), wanted, start, end)
    found = breakdown(environment_in(request), wanted, start, end)
    rows = list(samples_of(environment_in(request), wanted, start, end)[: rows_listed(request, _SHOWN)])
    context = context_of(
        request,
        "refusals",
        ranges=RANGES,
        chosen=chosen,
        filters=[(name, heading, given.get(name, "")) for name, (_, heading) in FILTERS.items()],
        more=bool(given.keys() - {"range", *list(FILTERS)[:2]}),
        found=found,
        percent=_percent(found.counted),
        partial=found.counted is not None and found.counted.known_s < (end - start).total_seconds() - 60,
        groups=[
            _Group(
                name,
                heading,
                [
                    (line, _words(name, line.value), _here({**given, name: line.value}) if line.value else "")
                    for line in found.lines[dimension]
                ],
                any(line.counted is not None for line in found.lines[dimension]),
            )
            for name, (dimension, heading) in FILTERS.items()
            if name not in given and any(line.value for line in found.lines.get(dimension, ()))
        ],
        rows=rows,
        file=_here({**given, "format": "csv"}),
        may_erase=may(request.user, "erase", environment_in(request)),
    )
    return render(request, "dashboard/refusals.html", context)


def _given(request: HttpRequest) -> dict[str, str]:
    given = {name: text_parameter(request, name, most=300).strip() for name in FILTERS}
    chosen = text_parameter(request, "range")
    given["range"] = chosen if chosen in _MINUTES else ""
    return {name: value for name, value in given.items() if value}


def _filter(given: dict[str, str]) -> Filter:
    return Filter(**{dimension: given.get(name, "") for name, (dimension, _) in FILTERS.items()})


def _here(given: dict[str, str]) -> str:
    kept = {name: value for name, value in given.items() if value}
    return f"{reverse('refusals')}?{urlencode(kept)}" if kept else reverse("refusals")


def _percent(counted: CountedRefusals | None) -> float | None:
    return 100 * counted.refused / counted.asked if counted is not None and counted.asked else None


def _words(name: str, value: str) -> str:
    if name == "reason":
        known = next((reason for reason in Reason if reason == value), None)
        return f"{value}: {REASONS[known]}" if known in REASONS else value
    return value or "none"


def _file(environment: str, wanted: Filter, start: datetime, end: datetime) -> HttpResponse:
    text = samples_as_csv(samples_of(environment, wanted, start, end)[: IN_FILE + 1])
    headers = {"Content-Disposition": f'attachment; filename="{environment}-refusals-{end:%Y-%m-%d}.csv"'}
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)
