"""The costs of calls to one model in the ledger, as they are and by another price.

A row has the sums of many calls. Its new cost is summed exactly, and rounded up once. It does not say which
of them were long or in a batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

from django.db import connection

from controlplane.ledger.reading import midnight
from controlplane.ledger.rows import DAYS, HOURS, TOTALS, sum_up
from controlplane.repricing.counted_spans import Span
from controlplane.spending.models import Model
from fuseboard.contract.budgets import MAX_BUDGET
from fuseboard.contract.models import undated

# Numeric, because tokens times micro-USD per million exceed a bigint.
_COST = f"""LEAST({MAX_BUDGET}, ceil((fresh::numeric * %(input)s + cached::numeric * %(cached)s
    + written::numeric * %(written)s + output::numeric * %(output)s) / 1000000))::bigint"""
_UNCACHED = f"""LEAST({MAX_BUDGET}, ceil(((fresh + cached + written)::numeric * %(input)s
    + output::numeric * %(output)s) / 1000000))::bigint"""
_OF_MODEL = "environment = %(environment)s AND model = ANY(%(models)s)"
_HOURS = f"{_OF_MODEL} AND at >= %(first)s AND at < %(end)s"
_DAYS = f"{_OF_MODEL} AND day >= %(since)s AND day <= %(until)s"


def _part(column: str, calls: str) -> str:
    """Amounts of some calls of a row: the same part of its new cost, or the part that these calls are.

    No part is more than the whole, whatever a pod has invented.
    """
    return f"""LEAST({_COST}, CASE WHEN micro_usd > 0 THEN round({column}::numeric * {_COST} / micro_usd)
        WHEN calls > 0 THEN round({calls}::numeric * {_COST} / calls) ELSE 0 END)::bigint"""


def _update(table: str, condition: str) -> str:
    return f"""
        UPDATE {table} SET micro_usd = {_COST}, saved_micro_usd = {_UNCACHED} - {_COST}, unpriced = 0,
            wasted_micro_usd = {_part("wasted_micro_usd", "wasted")},
            estimated_micro_usd = {_part("estimated_micro_usd", "estimated")}
        WHERE {condition}
            AND (micro_usd <> {_COST} OR saved_micro_usd <> {_UNCACHED} - {_COST} OR unpriced <> 0)
    """  # noqa: S608 - names of this module


_UPDATES = (_update(HOURS.name, _HOURS), _update(DAYS.name, _DAYS))
_COUNT = f"""
    SELECT count(*) FROM (SELECT FROM {DAYS.name} WHERE {_DAYS} LIMIT %(most)s) AS counted
"""  # noqa: S608 - names of this module
_MODELS = f"""
    SELECT DISTINCT model FROM {DAYS.name}
    WHERE environment = %s AND day >= %s AND day <= %s AND model <> ''
"""  # noqa: S608 - names of this module
_SUMS = f"""
    SELECT coalesce(sum(calls), 0), coalesce(sum(fresh + cached + written + output), 0),
        coalesce(sum(micro_usd), 0), coalesce(sum({_COST}), 0),
        coalesce(sum(CASE WHEN %(long_above)s > 0
            THEN LEAST(calls, (fresh + cached + written) / (%(long_above)s + 1)) ELSE 0 END), 0)
    FROM {DAYS.name} WHERE {_DAYS}
"""  # noqa: S608 - names of this module
_CHANGED_TENANTS = f"""
    SELECT DISTINCT tenant FROM {DAYS.name} WHERE {_DAYS} AND tenant <> '' AND micro_usd <> {_COST}
"""  # noqa: S608 - names of this module


def _in_spans(table: str, condition: str, name: str, at: str, kind: str) -> str:
    return f"""
        SELECT span.number, sum({_COST} - micro_usd) FROM {table} JOIN unnest(
            %(names)s::text[], %(began)s::{kind}[], %(ended)s::{kind}[]
        ) WITH ORDINALITY AS span (caller, since_at, until_at, number)
            ON {table}.{name} = span.caller AND {at} >= span.since_at AND {at} < span.until_at
        WHERE {condition} GROUP BY span.number
    """  # noqa: S608 - names of this module


_OF_POOLS = _in_spans(HOURS.name, f"{_HOURS} AND whose = 1", "dependency", "at", "timestamptz")
_OF_TENANTS_HOURS = _in_spans(HOURS.name, f"{_HOURS} AND whose = 2", "name", "at", "timestamptz")
_OF_TENANTS_DAYS = _in_spans(DAYS.name, _DAYS, "tenant", "day", "date")


@dataclass(frozen=True)
class Window:
    """Whole days in UTC, the last one included."""

    since: date
    until: date

    @property
    def days(self) -> int:
        return (self.until - self.since).days + 1

    @property
    def first(self) -> datetime:
        return midnight(self.since)

    @property
    def end(self) -> datetime:
        return midnight(self.until + timedelta(days=1))


@dataclass(frozen=True)
class Sums:
    calls: int
    tokens: int
    #: Micro-USD, as it is and by the other price.
    before: int
    after: int
    #: Calls that can have been long, at most.
    long_calls: int


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The rows of one model in some days, and a price: micro-USD per million tokens."""

    environment: str
    #: Every name of the model that the ledger has.
    models: Sequence[str]
    window: Window
    input: int
    cached: int
    written: int
    output: int

    def lock(self) -> None:
        """Let no other transaction write to the ledger until this one ends. Gateways lose nothing."""
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '60s'")
            # In the order in which every writer takes them.
            for table in (HOURS, DAYS, TOTALS):
                cursor.execute(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE")

    def has_more_than(self, rows: int) -> bool:
        """Whether these days have more rows of tenants."""
        return bool(self._rows(_COUNT, most=rows + 1)[0][0] > rows)

    def sums(self, *, long_above: int = 0) -> Sums:
        [row] = self._rows(_SUMS, long_above=long_above)
        return Sums(*map(int, row))

    def changed_tenants(self) -> list[str]:
        """The tenants whose calls cost something else by the price."""
        return [tenant for (tenant,) in self._rows(_CHANGED_TENANTS)]

    def added_to_pools(self, spans: Iterable[Span]) -> dict[Span, int]:
        """Span -> micro-USD that the price adds to the calls of a pool; negative for less.

        Spans begin and end at whole hours.
        """
        return self._added(_OF_POOLS, [(span, span) for span in spans])

    def added_to_tenants(self, spans: Iterable[Span]) -> dict[Span, int]:
        """Whole days have all tenants; the hours beside them have the most expensive ones."""
        days, hours = [], []
        for span in spans:
            first, last = _next_midnight(span.began), midnight(span.ended.date())
            if first < last:
                days.append((span.cut(first, last), span))
                hours += [(span.cut(span.began, first), span), (span.cut(last, span.ended), span)]
            else:
                hours.append((span, span))
        hours = [(part, span) for part, span in hours if not part.is_empty]
        found = self._added(_OF_TENANTS_DAYS, days)
        for span, added in self._added(_OF_TENANTS_HOURS, hours).items():
            found[span] = found.get(span, 0) + added
        return found

    def write(self) -> None:
        """Price the rows, in a transaction that has the lock."""
        window = self.window
        with connection.cursor() as cursor:
            for ago in range(window.days):
                day = window.until - timedelta(days=ago)
                for statement in _UPDATES:
                    cursor.execute(statement, replace(self, window=Window(day, day))._values())
            cursor.execute(
                sum_up("environment = %s AND day >= %s AND day <= %s"),
                [self.environment, window.since, window.until],
            )

    def _added(self, statement: str, parts: Sequence[tuple[Span, Span]]) -> dict[Span, int]:
        """``parts``: a part of a span, and the span."""
        found: dict[Span, int] = {}
        if parts:
            names, began, ended = map(list, zip(*(part for part, _ in parts), strict=True))
            for number, added in self._rows(statement, names=names, began=began, ended=ended):
                span = parts[number - 1][1]
                found[span] = found.get(span, 0) + int(added)
        return found

    def _rows(self, statement: str, **more: Any) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, self._values() | more)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def _values(self) -> dict[str, Any]:
        window = self.window
        names = ("since", "until", "first", "end")
        price = {name: getattr(self, name) for name in ("input", "cached", "written", "output")}
        about = {"environment": self.environment, "models": list(self.models)}
        return about | price | {name: getattr(window, name) for name in names}


def names_in_ledger(environment: str, model: str, window: Window) -> list[str]:
    """The names under which the ledger has calls to the model.

    Before a model is published, these are the names in requests: its aliases, and names with a date. A name
    belongs to one model, as for pods.
    """
    rows = Model.objects.filter(environment=environment)
    known = {name: row.name for row in rows for name in (row.name, *row.aliases)}
    with connection.cursor() as cursor:
        cursor.execute(_MODELS, [environment, window.since, window.until])
        names = [name for (name,) in cursor.fetchall()]
    return sorted(name for name in names if known.get(name, known.get(undated(name))) == model)


def _next_midnight(hour: datetime) -> datetime:
    day = midnight(hour.date())
    return day if day == hour else day + timedelta(days=1)
