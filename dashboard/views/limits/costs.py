"""Costs: what calls to language models used and cost in a month, by model, tenant, service or day."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.ledger.reading import (
    GROUPS,
    Line,
    Summary,
    Sums,
    Wanted,
    month_of,
    read_costs,
    read_last_report,
    read_months,
    read_summary,
)
from controlplane.phrases import count, percent, usd
from controlplane.policies.models import Tenant
from dashboard.tables.table_files import rows_listed
from dashboard.views.page import show, text_parameter
from fuseboard.contract.money import usd_decimals, usd_digits

#: Lines on the page. A file has more.
_SHOWN = 100
#: Parameter -> its word, and what lines of it are by when they are opened.
_FILTERS = {"model": ("Model", "tenant"), "tenant": ("Tenant", "model"), "service": ("Service", "model")}
#: Cached input costs as much as all input.
_NO_LOWER_PRICE = "no lower price"
_NAMELESS = {"model": "other models", "tenant": "no tenant", "service": "no service"}


@dataclass(frozen=True, kw_only=True)
class CostRow:
    line: Line
    name: str
    #: The lines behind this one.
    href: str
    share: str
    #: All amounts of the table have this number of decimals.
    decimals: int
    #: The state of a registered tenant, ``stop`` or ``suspended``; empty for other lines.
    stop: str = ""

    @property
    def cost(self) -> str:
        return usd(self.line.micro_usd, decimals=self.decimals)

    @property
    def saved(self) -> str:
        return _saved(self.line, self.decimals) if self.line.cached or self.line.written else ""

    @property
    def wasted(self) -> str:
        return usd(self.line.wasted_micro_usd, decimals=self.decimals) if self.line.wasted else ""

    @property
    def in_usd(self) -> dict[str, str]:
        """Column -> exact numbers, for files and for the order."""
        line = self.line
        return {
            "cost": _number(line.micro_usd),
            "saved": _number(line.saved_micro_usd) if self.saved else "",
            "wasted": _number(line.wasted_micro_usd) if self.wasted else "",
        }

    @property
    def cached(self) -> str:
        return percent(self.line.cached_share) if self.line.cached else ""

    @property
    def estimated(self) -> str:
        """``about 3 % estimated``; empty if the vendor reported everything."""
        if not self.line.estimated:
            return ""
        return f"{percent(self.line.estimated / self.line.calls)} of calls estimated"


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    why: str


@require_GET
@require("view")
def costs(request: HttpRequest) -> HttpResponse:
    """The filters are in the address: links, saved views and files have them."""
    environment, now = environment_in(request), timezone.now()
    today = now.astimezone(UTC).date()
    given = _given(request, today)
    since, until = _days(given, today)
    filters = {name: given[name] for name in _FILTERS if name in given}
    wanted = Wanted(by=given.get("by", GROUPS[0]), since=since, until=until, **filters)
    found = read_costs(environment, wanted, most=rows_listed(request, _SHOWN))
    summary = read_summary(environment, now)
    decimals = usd_decimals(found.total.micro_usd)
    rows = [_row(given, wanted, line, found.total, decimals) for line in found.lines]
    states = _stops(environment, found.lines) if wanted.by == "tenant" else {}
    return show(
        request,
        "costs",
        "costs.html",
        by=wanted.by,
        groups=[(word, _here(given, by=word), word == wanted.by) for word in _groups(wanted)],
        months=list(_months(environment, given, since, today)),
        chosen=[
            (word, given[name] or _NAMELESS[name], _here(given, **{name: None}))
            for name, (word, _) in _FILTERS.items()
            if name in given
        ],
        when=_when(wanted, now),
        rows=[replace(row, stop=states.get(row.line.name, "")) for row in rows],
        stops=bool(states) and may(request.user, "edit_tenant", environment),
        total=_total(found.total),
        cut=found.cut,
        figures=_figures(summary, now),
        month_cost=usd(summary.month.micro_usd) if summary.month.calls else "",
        sentences=list(_sentences(summary, read_last_report(environment), now)),
    )


def _stops(environment: str, lines: Iterable[Line]) -> dict[str, str]:
    """Tenant -> ``stop``, or ``suspended``; only of registered ones."""
    rows = Tenant.objects.filter(
        environment=environment, deleted=False, key__in=[line.name for line in lines]
    )
    return {key: "suspended" if off else "stop" for key, off in rows.values_list("key", "suspended")}


def _given(request: HttpRequest, today: date) -> dict[str, str]:
    """The parameters that say something. A parameter that is wrong is left out."""
    found = {name: text_parameter(request, name) for name in _FILTERS if name in request.GET}
    if "service" in found:
        # The ledger does not keep both of one call.
        found.pop("tenant", None)
    by, day, month = (text_parameter(request, name) for name in ("by", "day", "month"))
    hours = "service" in found or (by == "service" and "tenant" not in found)
    if by in GROUPS and not (by == "service" and "tenant" in found) and not (by == "tenant" and hours):
        found["by"] = by
    if _date(day):
        found["day"] = day
    elif _date(f"{month}-01") and month != f"{today:%Y-%m}":
        found["month"] = month
    return found


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if len(text) == 10 else None
    except ValueError:
        return None


def _days(given: dict[str, str], today: date) -> tuple[date, date]:
    if "day" in given:
        day = date.fromisoformat(given["day"])
        return day, day
    return month_of(date.fromisoformat(f"{given['month']}-01") if "month" in given else today)


def _when(wanted: Wanted, now: datetime) -> str:
    """The time of the lines, and the part of it that the ledger has: half a month is not its cost."""
    words = f"{wanted.since:%B %Y}" if wanted.since != wanted.until else f"{wanted.since:%-d %B %Y}"
    kept = wanted.kept_from(now)
    if wanted.until < kept:
        return f"{words}, no longer stored"
    return f"{words}, stored from {kept:%-d %B} on" if wanted.since < kept else words


def _here(given: dict[str, str], **changed: str | None) -> str:
    query = {name: value for name, value in {**given, **changed}.items() if value is not None}
    return f"{reverse('costs')}?{urlencode(query)}"


def _groups(wanted: Wanted) -> Iterator[str]:
    """The things that lines can be by: not what is chosen already, and not both a tenant and a service."""
    for name in GROUPS:
        if getattr(wanted, name, None) is not None:
            continue
        if name == ("service" if wanted.tenant is not None else "tenant") and (
            wanted.tenant is not None or wanted.service is not None
        ):
            continue
        yield name


def _months(
    environment: str, given: dict[str, str], shown: date, today: date
) -> Iterable[tuple[str, str, bool]]:
    """The months that the ledger knows, the newest first, and the present one."""
    for month in dict.fromkeys([today.replace(day=1), *read_months(environment)]):
        words = f"{month:%B}" if month.year == today.year else f"{month:%B %Y}"
        this = None if month == today.replace(day=1) else f"{month:%Y-%m}"
        is_shown = (month.year, month.month) == (shown.year, shown.month)
        yield words, _here(given, month=this, day=None), is_shown


def _row(given: dict[str, str], wanted: Wanted, line: Line, total: Sums, decimals: int) -> CostRow:
    if wanted.by == "day":
        # With a model and a tenant, or a service, nothing else is left to divide a day by.
        by = next((name for name in _groups(wanted) if name != "day"), "model")
        href = _here(given, by=by, day=line.name, month=None)
        name = f"{date.fromisoformat(line.name):%-d %B}"
    else:
        others = [other for other in _groups(wanted) if other != wanted.by]
        then = _FILTERS[wanted.by][1]
        href = _here(given, by=then if then in others else "day", **{wanted.by: line.name})
        name = line.name or _NAMELESS[wanted.by]
    share = percent(line.micro_usd / total.micro_usd) if total.micro_usd else ""
    return CostRow(line=line, name=name, href=href, share=share, decimals=decimals)


def _total(total: Sums) -> str:
    """``12.50 USD for 1,204 calls``."""
    return f"{usd(total.micro_usd)} for {count(total.calls, 'call', grouped=True)}"


def _figures(summary: Summary, now: datetime) -> list[Figure]:
    month, today = summary.month, summary.today
    end = month_of(now.astimezone(UTC).date())[1]
    decimals = usd_decimals(month.micro_usd)

    def money(micro_usd: int) -> str:
        return usd(micro_usd, decimals=decimals)

    saved, cached = _saved(month, decimals), f"{percent(month.cached_share)} of input is cached"
    return [
        Figure("This month", money(month.micro_usd), count(month.calls, "call", grouped=True)),
        Figure("Today, UTC", money(today.micro_usd), count(today.calls, "call", grouped=True)),
        Figure(
            "Projected",
            "too early" if summary.projected is None else money(summary.projected),
            "known after a whole day of calls"
            if summary.projected is None
            else f"on {end:%-d %B}, like the last 7 days",
        ),
        Figure("Saved by caching", saved, cached)
        if saved != _NO_LOWER_PRICE
        else Figure("Saved by caching", "unknown", f"{cached}, at {_NO_LOWER_PRICE}"),
        Figure(
            "Wasted",
            money(month.wasted_micro_usd),
            f"{count(month.wasted, 'answer', grouped=True)} not finished",
        ),
        Figure(
            "Estimated",
            money(month.estimated_micro_usd),
            f"{count(month.estimated, 'call', grouped=True)} without usage",
        ),
    ]


def _saved(sums: Sums, decimals: int) -> str:
    """Without its own price, cached input costs as much as all input: what the vendor asks is not known."""
    if sums.cached and not sums.saved_micro_usd:
        return _NO_LOWER_PRICE
    return usd(sums.saved_micro_usd, decimals=decimals)


def _number(micro_usd: int) -> str:
    return usd_digits(micro_usd).replace(",", "")


def _sentences(summary: Summary, reported: datetime | None, now: datetime) -> Iterator[str]:
    if not summary.month.calls:
        return
    today = now.astimezone(UTC).date()
    yield f"Since 1 {today:%B}, by the prices at the time of each call."
    if reported is not None:
        at = reported.astimezone(UTC)
        day = "" if at.date() == today else f" on {at:%-d %B}"
        yield f"The last report of a pod came at {at:%H:%M:%S} UTC{day}."
    if summary.projected is not None:
        projected = usd(summary.projected, decimals=usd_decimals(summary.month.micro_usd))
        yield f"{projected} at the end of the month, if it goes on like in the last 7 days."
    if summary.month.unpriced:
        calls = count(summary.month.unpriced, "call", grouped=True)
        yield f"{calls} had no price, and cost nothing here."
