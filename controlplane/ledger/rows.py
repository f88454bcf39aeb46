"""The statements that add to the tables of the ledger, for gateways and for the worker."""

from collections.abc import Sequence
from dataclasses import dataclass

#: The columns with amounts, in the order of ``UsageRow``.
AMOUNTS = (
    "calls",
    "fresh",
    "cached",
    "written",
    "output",
    "micro_usd",
    "wasted",
    "wasted_micro_usd",
    "estimated",
    "estimated_micro_usd",
    "unpriced",
    "saved_micro_usd",
)
#: No sum of a row is larger, so that four of them fit into a column too. Pods are not trusted: one that
#: invents usage must not make Postgres refuse what the others used on this day.
MAX_SUM = 2**60


def bounded(number: str) -> str:
    """The expression of a sum, as a column can have it."""
    return f"least(greatest({number}, -{MAX_SUM}), {MAX_SUM})::bigint"


@dataclass(frozen=True)
class Table:
    name: str
    #: The columns that identify a row, with their types; and the one that has the tenant.
    key: tuple[tuple[str, str], ...]
    tenant: str = ""
    #: The rows that have one.
    has_tenant: str = "true"

    @property
    def columns(self) -> str:
        return ", ".join((*self.names, *AMOUNTS))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.key)

    @property
    def _on_conflict(self) -> str:
        sums = ", ".join(
            f"{name} = {bounded(f'{self.name}.{name}::numeric + EXCLUDED.{name}')}" for name in AMOUNTS
        )
        return f"ON CONFLICT ({', '.join(self.names)}) DO UPDATE SET {sums}"

    @property
    def add(self) -> str:
        """Adds the rows of a JSON text. They are sorted, so that two gateways never wait for each other."""
        types = [*self.key, *[(name, "bigint") for name in AMOUNTS]]
        return f"""
            INSERT INTO {self.name} ({self.columns}) SELECT {self.columns}
            FROM json_to_recordset(%s::json) AS row({", ".join(f"{name} {kind}" for name, kind in types)})
            {self._on_conflict}
        """  # noqa: S608 - names of columns, from above

    def unname(self, condition: str) -> str:
        """Moves the rows of tenants that meet the condition to the row without a tenant."""
        names = ", ".join("''" if name == self.tenant else name for name in self.names)
        sums = ", ".join(bounded(f"sum({name})") for name in AMOUNTS)
        groups = ", ".join(name for name in self.names if name != self.tenant)
        return f"""
            WITH gone AS (
                DELETE FROM {self.name} WHERE {self.has_tenant} AND {self.tenant} <> '' AND {condition}
                RETURNING *
            )
            INSERT INTO {self.name} ({self.columns}) SELECT {names}, {sums} FROM gone GROUP BY {groups}
            ORDER BY {groups} {self._on_conflict}
        """  # noqa: S608 - names of columns, and a condition of this package


HOURS = Table(
    "ledger_usagehour",
    (
        ("environment", "text"),
        ("whose", "smallint"),
        ("at", "timestamptz"),
        ("name", "text"),
        ("model", "text"),
        ("dependency", "text"),
    ),
    tenant="name",
    has_tenant="whose = 2",
)
DAYS = Table(
    "ledger_usageday",
    (
        ("environment", "text"),
        ("day", "date"),
        ("tenant", "text"),
        ("model", "text"),
        ("dependency", "text"),
    ),
    tenant="tenant",
)
TOTALS = Table("ledger_usagetotal", (("environment", "text"), ("day", "date")))


def sum_up(condition: str) -> str:
    """Makes the totals of days from the rows of their tenants."""
    sums = ", ".join(bounded(f"sum({name})") for name in AMOUNTS)
    changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in AMOUNTS)
    return f"""
        INSERT INTO {TOTALS.name} (environment, day, {", ".join(AMOUNTS)})
        SELECT environment, day, {sums} FROM {DAYS.name} WHERE {condition} GROUP BY environment, day
        ON CONFLICT (environment, day) DO UPDATE SET {changed}
    """  # noqa: S608 - names of columns, and a condition of the control plane


#: Erases a tenant from an environment: its calls stay, without a name.
ERASE = tuple(table.unname(f"environment = %s AND {table.tenant} = %s") for table in (HOURS, DAYS))
#: The tenants with these numbers (``series.kinds.tenant_number``) in the days that pods can report.
LATELY = """
    SELECT tenant FROM (
        SELECT DISTINCT tenant FROM ledger_usageday
        WHERE environment = %s AND day >= (now() AT TIME ZONE 'UTC')::date - 8 AND tenant <> ''
    ) AS named
    WHERE ('x' || encode(substr(sha256(convert_to(tenant, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint = ANY(%s)
"""
#: Locks the receipts of processes, and returns what the ledger has of each.
RECEIPTS = """
    INSERT INTO ledger_usagereceipt (environment, server, boot, number, at)
    SELECT %s, server, boot, 0, now() FROM json_to_recordset(%s::json) AS row(server text, boot text)
    ON CONFLICT (environment, server, boot) DO UPDATE SET at = now()
    RETURNING server, boot, number
"""
COUNTED = """
    UPDATE ledger_usagereceipt SET number = row.number
    FROM json_to_recordset(%s::json) AS row(server text, boot text, number bigint)
    WHERE environment = %s AND ledger_usagereceipt.server = row.server AND ledger_usagereceipt.boot = row.boot
"""


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]
