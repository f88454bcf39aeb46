"""Writes rows together, and drops only those that Postgres refuses."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from controlplane.gateway.counts import RefusedValue

_Row = TypeVar("_Row")


async def write_accepted(
    write: Callable[[Sequence[_Row]], Awaitable[object]],
    rows: Sequence[_Row],
    refused: Callable[[_Row, BaseException], None],
) -> None:
    """Write all rows in one call of ``write``. After a refusal, write them in halves, down to single rows.

    ``refused`` gets each row that Postgres refuses alone: another attempt would change nothing. Raises what
    else ``write`` raises.
    """
    try:
        await write(rows)
    except RefusedValue as error:
        if len(rows) == 1:
            refused(rows[0], error)
            return
        half = len(rows) // 2
        await write_accepted(write, rows[:half], refused)
        await write_accepted(write, rows[half:], refused)
