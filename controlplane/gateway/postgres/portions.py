"""Divides rows into statements, so that a row that takes long stops no other row.

A row takes long when another session has locked it, for example. After a timeout, the rows of that
statement wait until all others are written. Then they are written in halves, until the row that takes long
is alone. That row is tried again after a pause.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from controlplane.gateway.clock import Clock
from controlplane.gateway.servers.rows import Row

#: Rows in one statement, and breakers of all its rows, so that a whole fleet of new pods stays far below the
#: statement timeout, and encoding them delays no heartbeat. A pod may report 500 breakers.
MAX_ROWS = 250
MAX_BREAKERS = 5_000

#: A row that takes long although it is alone is tried again after this pause.
AGAIN_S = 15.0
#: A row that was not tried for this long is like any other.
FORGET_S = 300.0
#: Statements in time, one after the other, before they contain more rows again.
IN_TIME = 8

Key = tuple[str, str]


@dataclass(slots=True)
class _Slow:
    #: Rows of the next statement with it.
    size: int
    #: When it was tried, monotonic.
    at: float
    not_before: float


class Portions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._most_rows = MAX_ROWS
        self._in_time = 0
        self._slow: dict[Key, _Slow] = {}
        #: The last row that was tried. The next attempt begins after it, so that every row has its turn.
        self._last: Key = ("", "")

    def divide(self, rows: list[Row]) -> Iterator[list[Row]]:
        """The rows of one statement after the other. Rows that have to wait are in none.

        ``rows`` are sorted, as are those of each statement, so that two gateways never wait for each other.
        """
        now, last, slow = self._clock.monotonic(), self._last, self._slow
        plain = [row for row in rows if key_of(row) not in slow]
        found = [(row, slow[key_of(row)]) for row in rows if key_of(row) in slow]
        due = [(row, one.size) for row, one in found if one.not_before <= now]
        yield from self._parts([row for row in plain if key_of(row) > last], None)
        yield from self._parts([row for row in plain if key_of(row) <= last], None)
        # Single rows are last: the others are most probably not to blame.
        for size, group in groupby(sorted(due, key=lambda one: -one[1]), key=lambda one: one[1]):
            yield from self._parts([row for row, _ in group], size)

    def wrote(self, part: list[Row]) -> None:
        """This statement ended in time."""
        self._last = key_of(part[-1])
        for row in part:
            self._slow.pop(key_of(row), None)
        self._in_time += 1
        if self._in_time >= IN_TIME:
            self._in_time, self._most_rows = 0, min(MAX_ROWS, 2 * self._most_rows)

    def timed_out(self, part: list[Row]) -> None:
        """This statement took too long."""
        now, size = self._clock.monotonic(), max(1, len(part) // 2)
        self._last, self._in_time = key_of(part[-1]), 0
        if key_of(part[0]) not in self._slow:
            self._most_rows = size
        not_before = now + AGAIN_S if len(part) == 1 else now
        self._slow = {key: slow for key, slow in self._slow.items() if now - slow.at < FORGET_S}
        self._slow |= {key_of(row): _Slow(size, now, not_before) for row in part}

    def _parts(self, rows: list[Row], size: int | None) -> Iterator[list[Row]]:
        part: list[Row] = []
        breakers = 0
        for row in rows:
            breakers += len(row.breakers)
            most = self._most_rows if size is None else size
            if part and (len(part) >= most or breakers > MAX_BREAKERS):
                yield part
                part, breakers = [], len(row.breakers)
            part.append(row)
        if part:
            yield part


def key_of(row: Row) -> Key:
    return row.environment, row.name
