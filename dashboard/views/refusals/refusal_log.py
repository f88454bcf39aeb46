"""The page of refusals: who is refused most, and why, over a range; and the samples."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.phrases import count
from controlplane.refusals.samples import IN_FILE, samples_as_csv
from controlplane.refusals.top_lists import (
    CALLS_BY_DEPENDENCY,
    REQUESTS_BY_REASON,
    REQUESTS_BY_TENANT,
    Of,
    TopLists,
    read_top,
)
from controlplane.refusals.words import reason_sentence
from controlplane.status.refusals import CountedRefusals, Filter, counted_refusals, samples_of
from dashboard.tables.table_files import rows_listed
from dashboard.views.page import context_of, text_parameter
from dashboard.views.refusals.refusal_tables import (
    FILTERS,
    counted_since,
    refused_words,
    sample_words,
    samples_kept_since,
    sections_of,
    share_words,
    window_words,
    words_of,
)

RANGES = {
    "15m": ("15 minutes", timedelta(minutes=15)),
    "1h": ("1 hour", timedelta(hours=1)),
    "6h": ("6 hours", timedelta(hours=6)),
    "24h": ("24 hours", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
    "28d": ("28 days", timedelta(days=28)),
}
_USUAL = "1h"
#: Samples on the page.
_SHOWN = 25


@require_GET
@require("view")
def refusals(request: HttpRequest) -> HttpResponse:
    """The filters are in the address: links, saved views and files have them."""
    environment, given = environment_in(request), _given(request)
    chosen = given.get("range", _USUAL)
    end = timezone.now()
    start = end - RANGES[chosen][1]
    values: dict[str, Any] = {dimension: given.get(name, "") for name, (dimension, _) in FILTERS.items()}
    wanted = Filter(**values)
    if request.GET.get("format") == "csv":
        return _file(environment, wanted, start, end)
    tops = None if wanted.set else read_top(environment, start, end)
    if tops is not None and tops.known:
        start = tops.start
    counted = counted_refusals(environment, wanted, start, end)

    def link(name: str, value: str) -> str:
        return _here({**given, name: value}) if value else ""

    samples = samples_of(environment, wanted, start, end)
    context = context_of(
        request,
        "refusals",
        ranges=[
            (words, _here({**given, "range": name}), name == chosen) for name, (words, _) in RANGES.items()
        ],
        given=[(name, value) for name, value in given.items() if name == "range"],
        filters=[(name, heading, given.get(name, "")) for name, (_, heading) in FILTERS.items()],
        narrowed=bool(given.keys() - {"range"}),
        more=bool(given.keys() - {"range", *list(FILTERS)[:2]}),
        headline=_headline(counted, wanted, tops),
        sentences=list(_sentences(environment, wanted, counted, tops, start, end)),
        sections=sections_of(environment, wanted, start, end, tops, link),
        rows=[(row, sample_words(row)) for row in samples[: rows_listed(request, _SHOWN)]],
        found=samples.count(),
        file=_here({**given, "format": "csv"}),
        may_erase=may(request.user, "erase", environment),
    )
    return render(request, "dashboard/refusals.html", context)


def _headline(counted: CountedRefusals | None, wanted: Filter, tops: TopLists | None) -> str:
    if tops is not None and tops.known:
        refused = round(tops.refused(Of.REQUESTS))
        # The number of the lists, so that all figures of the page have one sum. Lists of a part of the range
        # would make the share of its requests too low.
        if tops.whole and counted is not None:
            counted = CountedRefusals(refused, counted.asked, 0)
        elif counted is None:
            counted = CountedRefusals(refused, None, 0)
        if not counted.refused:
            return "No request was refused"
    if counted is None:
        return "Refusals"
    return refused_words(counted, Of.CALLS if wanted.dependency else Of.REQUESTS)


def _sentences(
    environment: str,
    wanted: Filter,
    counted: CountedRefusals | None,
    tops: TopLists | None,
    start: datetime,
    end: datetime,
) -> Iterator[str]:
    lists = tops is not None and tops.known
    if counted is not None or lists:
        # The range of the headline: it counts all of it, or has no counter and is the number of the lists.
        yield f"{window_words(counted_since(tops, start) if counted is None else start, end)}."
    if tops is not None and lists:
        if tops.stored_since is not None and not tops.whole:
            requests = count(round(tops.refused(Of.REQUESTS)), "refused request", grouped=True)
            begin = f"{tops.stored_since:%-d %b %H:%M}"
            yield f"The lists below begin later, at {begin} UTC: they have {requests}."
        yield from _most_refused(environment, tops, start, end)
        yield from _calls(tops)
    elif wanted.set and counted is None:
        yield "Pods do not count this combination, or nothing is stored of it. Below are shares of samples."
    elif counted is None:
        yield "Nothing is counted of this time. Below are shares of samples."
    length_s = (end - start).total_seconds()
    if counted is not None and counted.known_s < length_s - 60:
        yield f"Measured for {measured_words(counted.known_s, length_s)}."
    # Also without a filter: limits, pods and the reason of a tenant are from samples.
    if start < samples_kept_since(end):
        yield f"Samples are kept for {settings.REFUSAL_LOG_H} hours."


def measured_words(known_s: float, length_s: float) -> str:
    """``58 of 60 minutes``, ``20 of 24 hours``."""
    unit_s, unit = (60, "minutes") if length_s <= 7_200 else (3_600, "hours")
    return f"{known_s // unit_s:.0f} of {round(length_s / unit_s)} {unit}"


def _most_refused(environment: str, tops: TopLists, start: datetime, end: datetime) -> Iterator[str]:
    top = tops.lists.get(REQUESTS_BY_TENANT)
    if top is None or not top.total:
        return
    if not top.lines:
        reason = tops.lists[REQUESTS_BY_REASON].lines[0].name
        yield f"Most frequent reason: {reason_sentence(reason)}."
        return
    most = top.lines[0]
    of_all = f"{round(most.count):,} of {round(top.total):,} requests"
    yield (
        f"Most refused: {words_of('tenant', most.name)}, {of_all}"
        f" ({share_words(100 * most.count / top.total)})."
    )
    wanted = Filter(tenant=most.name, of=Of.REQUESTS)
    rows = samples_of(environment, wanted, start, end).order_by()
    found = rows.values("rule", "reason").annotate(part=Sum("weight")).order_by("-part").first()
    if found is not None:
        of = f" (limit {found['rule']})" if found["rule"] else ""
        yield f"{reason_sentence(found['reason'])}{of}."


def _calls(tops: TopLists) -> Iterator[str]:
    top = tops.lists.get(CALLS_BY_DEPENDENCY)
    if top is None or not top.lines:
        return
    most = top.lines[0]
    of = "all" if round(most.count) >= round(top.total) else f"{round(most.count):,}"
    at_least = "at least " if top.short_by and of != "all" else ""
    yield f"{round(top.total):,} calls to dependencies were not made, {at_least}{of} of them to {most.name}."


def _given(request: HttpRequest) -> dict[str, str]:
    given = {name: text_parameter(request, name, most=300).strip() for name in FILTERS}
    chosen = text_parameter(request, "range")
    given["range"] = chosen if chosen in RANGES else ""
    return {name: value for name, value in given.items() if value}


def _here(given: dict[str, str]) -> str:
    kept = {name: value for name, value in given.items() if value}
    return f"{reverse('refusals')}?{urlencode(kept)}" if kept else reverse("refusals")


def _file(environment: str, wanted: Filter, start: datetime, end: datetime) -> HttpResponse:
    text = samples_as_csv(samples_of(environment, wanted, start, end)[: IN_FILE + 1])
    headers = {"Content-Disposition": f'attachment; filename="{environment}-refusals-{end:%Y-%m-%d}.csv"'}
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)
