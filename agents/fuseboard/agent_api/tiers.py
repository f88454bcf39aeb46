"""Several calls at once that matter differently."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from msgspec import Struct

from fuseboard.calling.classification import refusal_of


class Tiered(Struct, frozen=True, kw_only=True):
    """The answers, in the order of the calls. ``None`` for one that is missing."""

    critical: tuple[Any, ...]
    standard: tuple[Any, ...]
    optional: tuple[Any, ...]


async def gather_tiers(
    critical: Sequence[Awaitable[Any]] = (),
    standard: Sequence[Awaitable[Any]] = (),
    optional: Sequence[Awaitable[Any]] = (),
) -> Tiered:
    """Await all calls at once.

    An error of a critical call is raised: the others are cancelled, and awaited. A standard call that
    is refused gives ``None``; its other errors are raised too. An optional call gives ``None`` for any error.
    """

    async def of_standard(call: Awaitable[Any]) -> Any:
        try:
            return await call
        except Exception as error:
            if refusal_of(error) is None:
                raise
            return None

    async def of_optional(call: Awaitable[Any]) -> Any:
        try:
            return await call
        except Exception:
            return None

    async def as_it_is(call: Awaitable[Any]) -> Any:
        return await call

    tiers = ((as_it_is, critical), (of_standard, standard), (of_optional, optional))
    tasks = [[asyncio.ensure_future(how(call)) for call in calls] for how, calls in tiers]
    every = [task for tier in tasks for task in tier]
    try:
        await asyncio.gather(*every)
    except BaseException:
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
        for call in (*critical, *standard, *optional):
            if asyncio.iscoroutine(call):
                call.close()  # it may not have begun
        raise
    first, second, third = (tuple(task.result() for task in tier) for tier in tasks)
    return Tiered(critical=first, standard=second, optional=third)
