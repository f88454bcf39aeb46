"""The costs of calls to one model in the ledger, as they are and by another price.

A row has the sums of many calls. Its new cost is summed exactly, and rounded up once. It does not say which
of them were long or in a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from typing import Any

from django.db import connection

from controlplane.ledger.reading import midnight
from controlplane.ledger.rows import DAYS, HOURS, TOTALS, sum_up
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
_OF_POOLS = f"""
    SELECT dependency, sum({_COST} - micro_usd) FROM {HOURS.name}
    WHERE {_HOURS} AND whose = 1 AND at >= %(began)s GROUP BY dependency
"""  # noqa: S608 - names of this module
# Whole days have all tenants; the hours before the first one have the most expensive ones.
_OF_TENANTS = f"""
    SELECT tenant, sum(added) FROM (
        SELECT tenant, {_COST} - micro_usd AS added FROM {DAYS.name} WHERE {_DAYS} AND day >= %(whole)s
        UNION ALL
        SELECT name, {_COST} - micro_usd FROM {HOURS.name}
        WHERE {_HOURS} AND whose = 2 AND at >= %(began)s AND at < %(whole)s
    ) AS changed WHERE tenant <> '' GROUP BY tenant
"""  # noqa: S608 - names of this module


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

    def added_by_pool(self, hour: datetime) -> dict[str, int]:
        """Dependency -> micro-USD that the price adds to its calls since this hour; negative for less."""
        return self._added(_OF_POOLS, began=hour)

    def added_by_tenant(self, hour: datetime) -> dict[str, int]:
        whole = hour.date() if hour.time() == time.min else hour.date() + timedelta(days=1)
        return self._added(_OF_TENANTS, began=hour, whole=midnight(whole))

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

    def _added(self, statement: str, **more: Any) -> dict[str, int]:
        return {name: int(added) for name, added in self._rows(statement, **more)}

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
