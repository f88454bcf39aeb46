"""A decision that a server has begun, for tests that wait for its answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from fuseboard.serving.call import Waiting, begin

T = TypeVar("T")


class Begun(Generic[T]):
    """Raises at once what the decision raises at once."""

    def __init__(self, decision: Coroutine[Any, Any, T]) -> None:
        self._over = asyncio.Event()
        self._begun = begin(decision, lambda waiting: self._over.set())
        self.waits = isinstance(self._begun, Waiting)

    def cancel(self) -> None:
        assert isinstance(self._begun, Waiting)
        self._begun.cancel()

    async def result(self) -> T:
        if not isinstance(self._begun, Waiting):
            return self._begun
        await self._over.wait()
        return self._begun.result()
