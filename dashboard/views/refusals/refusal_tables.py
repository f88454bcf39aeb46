"""The two parts of the page of refusals, requests and calls: lists of who is refused most, and why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.conf import settings

from controlplane.policies.models import Dependency
from controlplane.refusals.models import RefusalSample
from controlplane.refusals.names import INVALID_TENANT
from controlplane.refusals.top_lists import KINDS, By, Kind, Of, Top, TopLists
from controlplane.refusals.words import reason_sentence
from controlplane.status.refusals import CountedRefusals, Filter, Line, breakdown, counted_refusals

HEADINGS = {Of.REQUESTS: "Requests (429 and 503)", Of.CALLS: "Calls to dependencies"}
#: Parameter of the page -> its dimension, and the heading of its table.
FILTERS = {
    "tenant": ("tenant", "Tenant"),
    "endpoint": ("endpoint", "Endpoint"),
    "reason": ("reason", "Reason"),
    "dependency": ("dependency", "Dependency"),
    "rule": ("rule", "Limit"),
    "pod": ("server", "Pod"),
    "tier": ("tier", "Tier"),
}
#: The heading of "rule" for calls: a breaker has the name of its dependency.
_CALLED = "Limit or breaker"
#: Words for a refusal without a value.
_NOTHING = {
    "tenant": "no tenant",
    "endpoint": "not reported by the service",
    "rule": "no limit",
    "reason": "unknown",
}
#: Words for refusals that are in no line of the list.
_REST = {
    By.TENANT: "not counted per tenant",
    By.ENDPOINT: "other endpoints",
    By.DEPENDENCY: "other dependencies",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    words: str
    #: The page with this filter; empty where there is none.
    link: str
    #: ``1,204``, ``at least 1,200`` or ``about 1,200``; empty where only the share is known.
    figure: str
    percent: float

    @property
    def share(self) -> str:
        return share_words(self.percent)


@dataclass(frozen=True, kw_only=True)
class Group:
    name: str
    column: str
    #: Where the figures are from.
    source: str
    #: Shares are estimates.
    estimated: bool
    rows: list[Row]

    @property
    def heading(self) -> str:
        return f"By {self.column.lower()}"

    @property
    def figures(self) -> bool:
        return any(row.figure for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class Section:
    of: Of
    heading: str
    #: How many were refused, in words, and from when to when.
    words: str
    window: str
    groups: list[Group]


#: The address of the page with one more filter.
Link = Callable[[str, str], str]


def sections_of(
    environment: str, wanted: Filter, start: datetime, end: datetime, tops: TopLists | None, link: Link
) -> list[Section]:
    """Stored lists if there are some and nothing is filtered; otherwise shares of samples."""
    found = []
    for of in Of:
        if of is Of.REQUESTS and wanted.dependency:
            continue
        one = replace(wanted, of=of)
        section = (
            _of_lists(environment, one, start, end, tops, link)
            if tops is not None and tops.known
            else _of_samples(environment, one, start, end, link)
        )
        found.append(section)
    return found


def refused_words(counted: CountedRefusals, of: Of) -> str:
    """``22 of 8,100 requests were refused (0.3 %)``."""
    what = "requests" if of is Of.REQUESTS else "calls"
    if not counted.asked:
        return f"{counted.refused:,} {what} were refused"
    share = 100 * counted.refused / counted.asked
    return f"{counted.refused:,} of {counted.asked:,} {what} were refused ({share_words(share)})"


def share_words(percent: float) -> str:
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.5 <= percent < 100:
        # "100 %" is all.
        return "99.9 %" if percent >= 99.9 else f"{percent:.1f} %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


def words_of(name: str, value: str) -> str:
    """A value of a dimension, as people read it."""
    if name == "reason" and value:
        return reason_sentence(value)
    if value == INVALID_TENANT:
        return "an invalid tenant id"
    return value or _NOTHING.get(name, "none")


def sample_words(row: RefusalSample) -> dict[str, str]:
    """The cells of a sample."""
    names = [name for name in (row.dependency, row.rule) if name]
    return {
        "tenant": words_of("tenant", row.tenant),
        "rule": words_of("rule", ", ".join(dict.fromkeys(names))),
        "endpoint": words_of("endpoint", row.endpoint),
        "reason": words_of("reason", row.reason),
    }


def window_words(start: datetime, end: datetime) -> str:
    """``14:02 to 15:02 UTC``; with days if they differ, or are not that of the end."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    form = "%H:%M" if start.date() == end.date() else "%-d %b %H:%M"
    return f"{start:{form}} to {end:{form}} UTC"


def counted_since(tops: TopLists | None, start: datetime) -> datetime:
    """The start of the part of a range that the lists count."""
    if tops is None or tops.whole or tops.stored_since is None:
        return start
    return max(start, tops.stored_since)


def _of_lists(
    environment: str, wanted: Filter, start: datetime, end: datetime, tops: TopLists, link: Link
) -> Section:
    of = wanted.of or Of.REQUESTS
    refused = tops.refused(of)
    lists = [tops.lists[kind] for kind in KINDS if kind.of is of and kind in tops.lists]
    groups = [_stored(top, refused, link) for top in lists if top.total]
    first = counted_since(tops, start)
    groups += _sampled(environment, wanted, first, end, ("rule", "pod"), round(refused), link)
    if not refused:
        words = "None was refused" if of is Of.REQUESTS else "No call was refused"
    else:
        words = f"{round(refused):,} {'answered 429 or 503' if of is Of.REQUESTS else 'were not made'}"
    return Section(
        of=of,
        heading=HEADINGS[of],
        words=words,
        window=window_words(first, end),
        groups=groups if refused else [],
    )


def _stored(top: Top, refused: float, link: Link) -> Group:
    kind, name = top.kind, top.kind.by.value
    rows = [
        Row(
            words=words_of(name, line.name),
            link=link(name, line.name),
            figure=_figure(kind, line.count, top, refused),
            percent=100 * line.count / top.total,
        )
        for line in top.lines
    ]
    if round(top.rest) and kind.by in _REST:
        figure = _figure(replace(kind, sampled=True), top.rest, top, refused)
        figure = figure if kind.sampled or top.short_by else figure.removeprefix("about ")
        rows.append(Row(words=_REST[kind.by], link="", figure=figure, percent=100 * top.rest / top.total))
    return Group(
        name=f"{kind.of}-{name}",
        column=FILTERS[name][1],
        source="estimated from samples" if kind.sampled else "counted by pods",
        estimated=kind.sampled,
        rows=rows,
    )


def _figure(kind: Kind, count: float, top: Top, refused: float) -> str:
    if kind.sampled:
        # An estimate is a share of what was counted, so that its list has the same sum.
        return f"about {round(count / top.total * (refused or top.total)):,}"
    return f"{'at least ' if top.short_by else ''}{round(count):,}"


def _of_samples(environment: str, wanted: Filter, start: datetime, end: datetime, link: Link) -> Section:
    of = wanted.of or Of.REQUESTS
    counted = counted_refusals(environment, wanted, start, end)
    words = refused_words(counted, of) if counted is not None else ""
    names = [name for name in FILTERS if name != "tier"]
    if of is Of.REQUESTS:
        names.remove("dependency")
    refused = counted.refused if counted is not None else 0
    groups = _sampled(environment, wanted, start, end, names, refused, link)
    if not groups and not words:
        words = "No samples of this time"
    elif not words:
        words = "Pods do not count these together"
    return Section(of=of, heading=HEADINGS[of], words=words, window=window_words(start, end), groups=groups)


def _sampled(
    environment: str,
    wanted: Filter,
    start: datetime,
    end: datetime,
    names: Sequence[str],
    refused: int,
    link: Link,
) -> list[Group]:
    """Shares of samples, and the same shares of ``refused``: so that all lists of a section have one sum.

    Other counters, such as those of one pod or one limit, begin and end at other moments: their sums would
    contradict the heading. The same is true of samples that are not kept for the whole range.
    """
    chosen = [name for name in names if FILTERS[name][0] not in wanted.set]
    dimensions = [FILTERS[name][0] for name in chosen]
    found = breakdown(environment, wanted, start, end, dimensions=dimensions, count_lines=False)
    if not found.samples:
        return []
    if wanted.of is Of.CALLS and "rule" in chosen and not _names_limits(environment, found.lines["rule"]):
        chosen.remove("rule")
    kept = samples_kept_since(end)
    many = "" if found.samples == 1 else "s"
    of = f"of the last {settings.REFUSAL_LOG_H} hours " if start < kept else ""
    return [
        Group(
            name=f"{wanted.of}-{name}",
            column=_CALLED if name == "rule" and wanted.of is Of.CALLS else FILTERS[name][1],
            source=f"shares {of}are estimates from {found.samples:,} sample{many}",
            estimated=True,
            rows=[_row(name, line, 0 if of else refused, link) for line in found.lines[FILTERS[name][0]]],
        )
        for name in chosen
    ]


def _names_limits(environment: str, lines: Sequence[Line]) -> bool:
    """Whether some line is more than the name of a dependency whose breaker refused: those have a list."""
    values = {line.value for line in lines if line.value}
    of_breakers = Dependency.objects.filter(environment_id=environment, name__in=list(values))
    return bool(values - set(of_breakers.values_list("name", flat=True)))


def samples_kept_since(end: datetime) -> datetime:
    """The oldest samples. The start of a list can be rounded down to an hour."""
    return (end - timedelta(hours=settings.REFUSAL_LOG_H)).replace(minute=0, second=0, microsecond=0)


def _row(name: str, line: Line, refused: int, link: Link) -> Row:
    return Row(
        words=words_of(name, line.value),
        link=link(name, line.value),
        figure=f"about {round(line.percent / 100 * refused):,}" if refused else "",
        percent=line.percent,
    )
