"""Partitions of the sealed tables: a day of 10 s and of minutes, a month of hours.

Only the worker writes these tables, so it makes a partition before it seals the first hour of it. To
drop one costs the same whatever it contains.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

from controlplane.postgres import transaction_lock
from controlplane.series.kinds import MINUTES, SPANS

#: The wait for the locks of readers. Sealing tries again a minute later.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '2s'"


@dataclass(frozen=True)
class Table:
    name: str
    #: The column of time.
    column: str
    #: Values of one field in a row, and the seconds that each covers.
    across: int
    step_s: int
    monthly: bool = False

    @property
    def row_s(self) -> int:
        return self.across * self.step_s

    def row_of(self, at: datetime) -> datetime:
        """The time of the row that contains this moment."""
        at = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return at.replace(hour=0) if self.row_s > 3600 else at

    def partition_of(self, at: datetime) -> tuple[str, datetime, datetime]:
        """Name, begin, and end of the partition that contains this moment."""
        begin = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if not self.monthly:
            return f"{self.name}_{begin:%Y%m%d}", begin, begin + timedelta(days=1)
        begin = begin.replace(day=1)
        return f"{self.name}_{begin:%Y%m}", begin, (begin + timedelta(days=32)).replace(day=1)


SPANS_10S = Table("series_10s", "hour", SPANS, 10)
SPANS_1M = Table("series_1m", "hour", MINUTES, 60)
SPANS_1H = Table("series_1h", "day", 24, 3600, monthly=True)
TABLES = (SPANS_10S, SPANS_1M, SPANS_1H)

_NAMES = """
    SELECT child.relname FROM pg_inherits
    JOIN pg_class AS child ON child.oid = inhrelid
    WHERE inhparent = %s::regclass
"""


def names(table: Table) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(_NAMES, [table.name])
        return {name for (name,) in cursor.fetchall()}


def ensure(at: datetime) -> None:
    """Make the missing partitions for this moment. Raises ``OperationalError`` if locks are taken."""
    for table in TABLES:
        name, begin, end = table.partition_of(at)
        if name in names(table):
            continue
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_LOCK_TIMEOUT)
            # Two workers make it at the same time: the second one finds it.
            transaction_lock("fuseboard.series.partitions")
            if name in names(table):
                continue
            # To attach it does not stop readers, as PARTITION OF would.
            cursor.execute(f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)")
            cursor.execute(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)", [begin, end]
            )


def expired(table: Table, before: datetime) -> Iterator[str]:
    """Names of partitions that end before this moment."""
    newest, _, _ = table.partition_of(before)
    # Names of one table have one length, so that they sort by time.
    yield from sorted(name for name in names(table) if name < newest)


def drop(name: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK_TIMEOUT)
        cursor.execute(f"DROP TABLE {name}")
