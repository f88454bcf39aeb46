"""The statements for the tables that keep demand: the same for each, with other columns."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    name: str
    #: Columns that identify a row, and columns that it counts.
    of: tuple[str, ...]
    counts: tuple[str, ...]

    @property
    def sample(self) -> str:
        """Takes the length of a span, its begin, and rows as JSON."""
        row = _list(
            [*(f"{column} text" for column in self.of), *(f"{count} bigint" for count in self.counts)]
        )
        return f"""
            {self._into}
            SELECT {_list(self.of)}, %s, %s, {_list(self.counts)}
            FROM json_to_recordset(%s::json) AS row({row})
            {self._again}
        """  # noqa: S608 - names of columns, from below

    @property
    def roll(self) -> str:
        """Rewrites every ``coarse`` span since ``since`` from the ``fine`` ones."""
        return f"""
            {self._into}
            SELECT {_list(self.of)}, %(coarse)s,
                   to_timestamp(floor(extract(epoch FROM at) / %(coarse)s) * %(coarse)s) AS begin,
                   {_list(f"sum({count})" for count in self.counts)}
            FROM {self.name}
            WHERE grain_s = %(fine)s AND at >=
                  to_timestamp(floor(extract(epoch FROM %(since)s::timestamptz) / %(coarse)s) * %(coarse)s)
            GROUP BY {_list(self.of)}, begin
            {self._again}
        """  # noqa: S608

    @property
    def _into(self) -> str:
        return f"INSERT INTO {self.name} ({_list(self.of)}, grain_s, at, {_list(self.counts)})"

    @property
    def _again(self) -> str:
        new = _list(f"{count} = EXCLUDED.{count}" for count in self.counts)
        return f"ON CONFLICT ({_list(self.of)}, grain_s, at) DO UPDATE SET {new}"


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)


TENANTS = Table("usage_demand", ("environment", "tenant"), ("asked", "refused"))
RULES = Table("usage_ruledemand", ("environment", "tenant", "rule"), ("asked", "refused", "shadow"))
TABLES = (TENANTS, RULES)
