"""Requests that pods allowed without Redis in a time, and those of them over the limits.

For each span of a limit: what was allowed without Redis is copied from Redis and exact; what was allowed in
all is what pods counted, as far as stored demand lists it. Over the limit is what both are above the most
that the limit allowed in that span, and never more than was allowed without Redis.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import connection
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Min, QuerySet, Sum, Value
from django.db.models.functions import Greatest

from controlplane.phrases import count
from controlplane.reconciliation.models import AllowedAlone, Copying, LostCounts
from controlplane.same_fields import made_from
from controlplane.usage.models import RuleDemand
from controlplane.usage.rollups import MINUTE_S

#: Limits of one report, those that were most over first; and spans that are read for them.
MAX_LIMITS, MAX_SPANS = 500, 50_000
#: The longest time of a report.
LONGEST = timedelta(days=40)

#: Why pods decide more calls than limits count.
NOT_AMONG_ALLOWED = "Calls that pods refused, and calls that no limit counts, are not among those allowed."

_CALLS = ("calls", "")

_Limit = tuple[str, str, bool]


class Certainty(StrEnum):
    EXACT = "exact"
    #: The window is shorter than a span, or not everything that Redis allowed is known.
    AT_LEAST = "at_least"
    #: The limit was not found, so nothing can be compared.
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One limit of one tenant, or of all together."""

    #: ``t:`` and a digest, ``d:`` and a dependency, or ``i:`` and a digest.
    domain: str
    tenant: str
    dependency: str
    rule: str
    measure: str
    shadow: bool
    #: It counts each address, login, key or endpoint; this is one of them.
    divided: bool
    spans: int
    without_redis: int
    #: Requests that Redis allowed beside it; ``None`` if that is not known.
    with_redis: int | None
    #: The most that the limit allowed in these spans; ``None`` if the limit is not known.
    capacity: int | None
    #: At least this was over the limit; ``None`` if nothing can be said.
    over: int | None
    certainty: Certainty

    @property
    def over_at_most(self) -> int:
        """No more than was allowed without Redis: the rest was within what Redis allows."""
        return (
            self.over if self.certainty is Certainty.EXACT and self.over is not None else self.without_redis
        )


@dataclass(frozen=True, kw_only=True)
class AllowedCalls:
    """Calls that pods allowed by themselves. A call that several limits count is in it once.

    Of each tenant, caller or dependency, it has the largest number of any limit: which calls two limits have
    in common is not stored.
    """

    requests: int
    to_dependencies: int
    #: Two limits may have counted different calls, so there may be more.
    at_least: bool

    @property
    def words(self) -> str:
        """``at least 45 requests and 1,200 calls to dependencies``."""
        both = (
            (self.requests, count(self.requests, "request", grouped=True)),
            (self.to_dependencies, f"{count(self.to_dependencies, 'call', grouped=True)} to dependencies"),
        )
        said = " and ".join(words for number, words in both if number) or "no call"
        return f"at least {said}" if self.at_least else said


@dataclass(frozen=True, kw_only=True)
class Report:
    since: datetime
    until: datetime
    #: Lines, those that were most over first.
    lines: list[Line]
    #: Limits that have no line.
    more: int
    #: The sums of all limits without shadows. A call that several limits count is in them several times.
    without_redis: int
    over: int
    allowed: AllowedCalls
    #: Copied since then, at an unknown time.
    untimed: int
    #: Pods did not count these calls, or died before they reported them.
    uncounted: int
    unreported: int
    #: Journals of dead pods, since the beginning: too old, so that their calls are unknown; and reported by
    #: other pods, so that nothing is missing.
    expired_journals: int
    adopted_journals: int
    #: Everything that pods reported by then is in it; ``None`` before the first copy.
    complete_until: datetime | None
    #: Why nothing is copied now.
    problem: str
    #: Postgres keeps no more rows of this environment.
    full: bool

    @property
    def is_certain(self) -> bool:
        lost = self.uncounted or self.unreported or self.expired_journals or self.untimed
        lost = lost or self.full or self.more
        exact = all(line.certainty is Certainty.EXACT for line in self.lines if not line.shadow)
        return exact and not lost and self.complete

    @property
    def over_calls(self) -> int:
        """At least this many calls were over a limit. A call that was over several is in it once."""
        most: dict[tuple[str, str], int] = defaultdict(int)
        by_rule: dict[tuple[str, str, str], int] = defaultdict(int)
        for line in self.lines:
            if not line.shadow and line.measure in _CALLS:
                by_rule[line.domain, line.dependency, line.rule] += line.over or 0
        for (domain, dependency, _), over in by_rule.items():
            # A dependency counts the calls of all tenants again.
            of = dependency or domain
            most[of, domain] = max(most[of, domain], over)
        return sum(_once(most).values())

    @property
    def complete(self) -> bool:
        return self.complete_until is not None and self.complete_until >= self.until


def reconciled(environment: str, since: datetime, until: datetime, tenant: str = "") -> Report:
    """Requests that pods allowed by themselves in a time: for pages, the API, and reports of incidents.

    With a tenant, only of its limits. Counts that are missing are of the environment: no one knows whose.
    """
    since = max(since, until - LONGEST)
    rows = _in_time(environment, since, until)
    if tenant:
        rows = rows.filter(tenant=tenant)
    chosen, number = _chosen(rows)
    spans = list(_of_limits(rows, chosen).order_by("start")[:MAX_SPANS])
    lines = _lines(environment, spans)
    sums = _of_calls(rows).aggregate(without_redis=Sum("amount", default=0))
    lost = LostCounts.objects.filter(environment=environment, since__lt=until, until__gt=since)
    losses = lost.aggregate(uncounted=Sum("uncounted", default=0), unreported=Sum("unreported", default=0))
    # Another pod finds the journal of a dead one when it starts, which may be long after the outage.
    later = LostCounts.objects.filter(environment=environment, until__gt=since)
    journals = later.aggregate(
        expired_journals=Sum("expired", default=0), adopted_journals=Sum("adopted", default=0)
    )
    copying = Copying.objects.filter(pk=1).first()
    return Report(
        since=since,
        until=until,
        lines=lines,
        more=max(0, number - len(lines)),
        **sums,
        **losses,
        **journals,
        over=sum(line.over or 0 for line in lines if not line.shadow and line.measure in _CALLS),
        allowed=_allowed(rows),
        untimed=_untimed(environment, since),
        complete_until=copying.began_at if copying is not None else None,
        problem=copying.problem if copying is not None else "",
        full=copying is not None and environment in copying.full,
    )


def _allowed(rows: QuerySet[AllowedAlone]) -> AllowedCalls:
    found = _of_calls(rows).values_list("domain", "dependency", "rule").annotate(total=Sum("amount"))
    requests: dict[tuple[str, str], int] = defaultdict(int)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    limits: dict[tuple[str, str], int] = defaultdict(int)
    for domain, dependency, _, total in found.order_by().iterator(10_000):
        of = (dependency or domain, domain)
        limits[of] += 1
        kept = calls if dependency else requests
        kept[of] = max(kept[of], total)
    return AllowedCalls(
        requests=sum(_once(requests).values()),
        to_dependencies=sum(_once(calls).values()),
        at_least=any(number > 1 for number in limits.values()),
    )


def _once(most: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """The largest number of each dependency: by its own limits, or by those of all tenants together."""
    by_tenants: dict[str, int] = defaultdict(int)
    own: dict[str, int] = defaultdict(int)
    for (of, domain), number in most.items():
        kept = own if domain.startswith("d:") else by_tenants
        kept[of] += number
    return {of: max(by_tenants[of], own[of]) for of in {**by_tenants, **own}}


@dataclass(frozen=True)
class CallsAlone:
    """Requests of a tenant that pods allowed by themselves: the largest number of any of its limits."""

    calls: int = 0
    #: The beginning of the first span that is counted, whose limit may be of a month.
    since: datetime | None = None


def calls_alone(environment: str, since: datetime, until: datetime, tenant: str) -> CallsAlone:
    rows = _of_calls(_in_time(environment, since, until).filter(tenant=tenant))
    limits = rows.values("rule").annotate(calls=Sum("amount"), first=Min("start")).order_by("-calls")
    most = limits.first()
    return CallsAlone() if most is None else CallsAlone(most["calls"], most["first"])


def _of_calls(rows: QuerySet[AllowedAlone]) -> QuerySet[AllowedAlone]:
    """Costs such as tokens have no sum with calls. An unknown limit counts calls, as nearly all do."""
    return rows.filter(shadow=False, measure__in=_CALLS)


def _in_time(environment: str, since: datetime, until: datetime) -> QuerySet[AllowedAlone]:
    """Spans that have a part of the time."""
    rows = AllowedAlone.objects.filter(environment=environment, length_s__gt=0, amount__gt=0, start__lt=until)
    # Times of index entries bound the rows, because the longest span is a month.
    length = ExpressionWrapper(F("length_s") * Value(timedelta(seconds=1)), output_field=DurationField())
    ends = ExpressionWrapper(F("start") + length, output_field=DateTimeField())
    return rows.filter(start__gt=since - LONGEST).annotate(ends=ends).filter(ends__gt=since)


def _chosen(rows: QuerySet[AllowedAlone]) -> tuple[list[tuple[str, str]], int]:
    limits = rows.values("domain", "counter").annotate(
        above=Sum(Greatest(F("amount") - F("capacity"), 0)), total=Sum("amount")
    )
    first = limits.order_by(F("above").desc(nulls_last=True), "-total", "domain", "counter")[:MAX_LIMITS]
    return [(row["domain"], row["counter"]) for row in first], limits.count()


def _of_limits(rows: QuerySet[AllowedAlone], chosen: list[tuple[str, str]]) -> QuerySet[AllowedAlone]:
    return rows.filter(domain__in={one for one, _ in chosen}, counter__in={one for _, one in chosen})


def _lines(environment: str, spans: list[AllowedAlone]) -> list[Line]:
    by_limit: dict[_Limit, list[AllowedAlone]] = defaultdict(list)
    for span in spans:
        by_limit[span.domain, span.counter, span.shadow].append(span)
    allowed = _Allowed(environment, spans)
    lines = [_line(found, allowed) for found in by_limit.values()]
    lines.sort(key=lambda line: (-(line.over or 0), -line.without_redis, line.tenant, line.rule, line.domain))
    return lines


def _line(spans: list[AllowedAlone], allowed: "_Allowed") -> Line:
    one = spans[-1]
    without = sum(span.amount for span in spans)
    known = [allowed.in_span(span) for span in spans]
    redis: int | None = None
    if all(amount is not None for amount in known):
        redis = sum(max(0, (amount or 0) - span.amount) for amount, span in zip(known, spans, strict=True))
    over: int | None = None
    if all(span.capacity is not None for span in spans):
        over = sum(
            min(span.amount, max(0, max(span.amount, amount or 0) - (span.capacity or 0)))
            for amount, span in zip(known, spans, strict=True)
        )
    certainty = Certainty.EXACT
    if over is None:
        certainty = Certainty.UNKNOWN
    elif over < without and (redis is None or any(span.shorter for span in spans)):
        certainty = Certainty.AT_LEAST
    return made_from(
        Line,
        one,
        spans=len(spans),
        without_redis=without,
        with_redis=redis,
        capacity=None if over is None else sum(span.capacity or 0 for span in spans),
        over=over,
        certainty=certainty,
    )


class _Allowed:
    """Requests that pods counted as allowed, with and without Redis, by tenant and rule in minutes."""

    def __init__(self, environment: str, spans: Iterable[AllowedAlone]) -> None:
        usable = [span for span in spans if _comparable(span)]
        self._minutes: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        if not usable:
            return
        begin = min(span.start for span in usable if span.start)
        end = max(span.start + timedelta(seconds=span.length_s) for span in usable if span.start)
        rows = RuleDemand.objects.filter(
            environment=environment,
            grain_s=MINUTE_S,
            at__gte=begin,
            at__lt=end,
            tenant__in={span.tenant for span in usable},
            rule__in={span.rule for span in usable},
        )
        for tenant, rule, at, asked, refused in rows.values_list(
            "tenant", "rule", "at", "asked", "refused"
        ).iterator(10_000):
            self._minutes[tenant, rule][int(at.timestamp())] = asked - refused

    def in_span(self, span: AllowedAlone) -> int | None:
        """``None`` if pods did not list the tenant then, or if no minutes add up to the span."""
        if not _comparable(span) or span.start is None:
            return None
        minutes, begin = self._minutes.get((span.tenant, span.rule)), int(span.start.timestamp())
        if not minutes or begin % MINUTE_S:
            return None
        found = [minutes[at] for at in range(begin, begin + span.length_s, MINUTE_S) if at in minutes]
        return sum(found) if found else None


def _comparable(span: AllowedAlone) -> bool:
    """Demand counts requests of a tenant by rule, neither costs nor the callers within it."""
    return bool(span.tenant) and not span.divided and span.measure == "calls" and not span.length_s % MINUTE_S


def _untimed(environment: str, since: datetime) -> int:
    """Sums of limits that changed since then, without their spans of time."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT coalesce(sum(greatest(0, total - coalesce(timed, 0))), 0)
            FROM (
                SELECT sum(amount) FILTER (WHERE field = counter) AS total,
                       sum(amount) FILTER (WHERE length_s > 0) AS timed,
                       max(copied_at) FILTER (WHERE field = counter) AS copied_at
                FROM reconciliation_allowedalone WHERE environment = %s GROUP BY domain, counter
            ) counters
            WHERE copied_at >= %s
            """,
            [environment, since],
        )
        return int(cursor.fetchone()[0])
