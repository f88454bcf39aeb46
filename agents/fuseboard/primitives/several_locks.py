"""Several locks for one block, taken in the order of their names: two blocks never wait for each other."""

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from time import monotonic
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from fuseboard.errors import Misconfigured
from fuseboard.primitives.lock import AsyncLock, BlockingLock, check_lock

#: More locks than this are one lock with a wider name.
MAX_LOCKS = 50


class Held(Protocol):
    """The part of a lock that a block with several locks needs."""

    @property
    def valid(self) -> bool: ...

    def check(self) -> None: ...


L = TypeVar("L", bound=Held)


class SeveralLocks(Generic[L]):
    """``wait_s`` is the longest wait for all of them together."""

    def __init__(
        self,
        make: Callable[[str, float, float], L],
        names: Iterable[str],
        ttl_s: float,
        wait_s: float,
    ) -> None:
        if isinstance(names, str):
            raise Misconfigured(f"lock_all() takes several names, not the text {names!r:.80}: use lock()")
        given = list(names)
        for name in given:
            check_lock(name, ttl_s, wait_s)
        # A lock is not reentrant: a name that is given twice is one lock.
        self.names = tuple(sorted(set(given)))
        if not 1 <= len(self.names) <= MAX_LOCKS:
            raise Misconfigured(f"lock_all() takes 1 to {MAX_LOCKS} names, not {len(self.names)}")
        self._make, self._ttl_s, self._wait_s = make, ttl_s, wait_s
        #: Locks by name; empty outside the block.
        self.locks: dict[str, L] = {}

    @property
    def valid(self) -> bool:
        """Whether this process surely has all of them now."""
        return len(self.locks) == len(self.names) and all(lock.valid for lock in self.locks.values())

    def check(self) -> None:
        """Raise ``LockLost`` unless this process surely has all of them: before each write that matters."""
        for lock in self.locks.values():
            lock.check()

    def _next(self, name: str, until: float) -> L:
        return self._make(name, self._ttl_s, min(self._wait_s, max(0.0, until - monotonic())))


class AsyncSeveralLocks(SeveralLocks[AsyncLock]):
    """``async with``."""

    async def __aenter__(self) -> Self:
        until = monotonic() + self._wait_s
        async with AsyncExitStack() as stack:
            self.locks = {
                name: await stack.enter_async_context(self._next(name, until)) for name in self.names
            }
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.locks = {}
        await self._stack.__aexit__(kind, error, trace)


class BlockingSeveralLocks(SeveralLocks[BlockingLock]):
    """``with``."""

    def __enter__(self) -> Self:
        until = monotonic() + self._wait_s
        with ExitStack() as stack:
            self.locks = {name: stack.enter_context(self._next(name, until)) for name in self.names}
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.locks = {}
        self._stack.__exit__(kind, error, trace)
