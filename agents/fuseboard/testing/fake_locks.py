"""Locks of a fake agent: in memory, for ``with`` and for ``async with``."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

from fuseboard.agent_api.decorators import Blocks
from fuseboard.errors import LockLost, LockTaken
from fuseboard.primitives.api import LockDecorator
from fuseboard.primitives.lock import MAX_WAIT_S, TTL_S, check_lock
from fuseboard.primitives.several_locks import SeveralLocks
from fuseboard.testing.time import ManualClock


class FakeBlock(AbstractContextManager[Any]):
    """A block for ``with`` and for ``async with``: the fake waits for nothing."""

    async def __aenter__(self) -> Self:
        self.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class FakeLock(FakeBlock):
    """A lock like ``fuseboard.primitives.lock.Lock``."""

    def __init__(self, locks: "FakeLocks", name: str, ttl_s: float, wait_s: float) -> None:
        check_lock(name, ttl_s, wait_s)
        self.name = name
        self.fence = 0
        self._locks, self._ttl_s, self._wait_s = locks, ttl_s, wait_s

    @property
    def valid(self) -> bool:
        return self.fence > 0 and self._locks.taken.get(self.name) == self.fence

    def check(self) -> None:
        if not self.valid:
            raise LockLost(self.name, "the test ended it")

    def __enter__(self) -> Self:
        if self.name in self._locks.taken:
            # Only the test could release it: the whole wait passes, by the clock.
            self._locks.clock.advance(self._wait_s)
            raise LockTaken(self.name, self._ttl_s)
        self.fence = self._locks.take_lock(self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = not self.valid
        if not lost:
            self._locks.free_lock(self.name)
        self.fence = 0
        if lost and error is None:
            raise LockLost(self.name, "the test ended it")


class FakeSeveralLocks(SeveralLocks[FakeLock], FakeBlock):
    """Several locks for ``with`` and for ``async with``."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.locks = {
                name: stack.enter_context(self._make(name, self._ttl_s, self._wait_s)) for name in self.names
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.locks = {}
        self._stack.__exit__(kind, error, trace)


class FakeLocks(LockDecorator):
    """A lock is free until a block or a test takes it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        #: The number of each lock that is taken.
        self.taken: dict[str, int] = {}
        self._fence = 0

    def lock(self, name: str, *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S) -> FakeLock:
        return FakeLock(self, name, ttl_s, wait_s)

    def lock_all(
        self, names: Iterable[str], *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S
    ) -> "FakeSeveralLocks":
        return FakeSeveralLocks(
            lambda name, ttl_s, wait_s: self.lock(name, ttl_s=ttl_s, wait_s=wait_s), names, ttl_s, wait_s
        )

    def _lock_blocks(self) -> Blocks:
        return self.lock, self.lock

    # Methods that script the fake

    def take_lock(self, name: str) -> int:
        """Another process takes the lock, whatever holds it now; its number."""
        self._fence += 1
        self.taken[name] = self._fence
        return self._fence

    def free_lock(self, name: str) -> None:
        """Nothing has the lock any more."""
        self.taken.pop(name, None)
