"""Locks and idempotency as an agent offers them, on an event loop and in threads.

What few processes use is loaded on first use.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from fuseboard.agent_api.decorators import Blocks, GivenOptions, in_blocks
from fuseboard.agent_api.options import Given
from fuseboard.primitives.lock import MAX_WAIT_S, TTL_S, AsyncLock, BlockingLock, Locks, check_lock
from fuseboard.primitives.store_thread import StoreThread
from fuseboard.reporting.primitive_figures import PrimitiveFigures

if TYPE_CHECKING:
    from fuseboard.primitives.idempotency import Records
    from fuseboard.primitives.once import AsyncOnce, BlockingOnce, EventId
    from fuseboard.primitives.several_locks import AsyncSeveralLocks, BlockingSeveralLocks
    from fuseboard.reporting.seals import Seals

P = ParamSpec("P")
R = TypeVar("R")

KEEP_S, LEASE_S = 86_400.0, 60.0


class LockDecorator(ABC):
    """``locked``, the same for every kind of agent."""

    def locked(
        self, name: Given[str], *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function has the lock ``name``, as in ``lock``.

        ``name`` may be a function, which gets the arguments of the call. It must return what it locks, such
        as ``lambda order_id: f"order-{order_id}"``. A blocking function must not be called on the event loop.
        """
        check_lock("given by a function" if callable(name) else name, ttl_s, wait_s)
        options = GivenOptions({"ttl_s": ttl_s, "wait_s": wait_s}, name=name)
        return in_blocks(*self._lock_blocks(), options)

    @abstractmethod
    def _lock_blocks(self) -> Blocks:
        """The lock for async functions, and the one for blocking functions."""


class AsyncPrimitives(LockDecorator):
    """The primitives of an agent on an event loop. ``figures`` and ``seals`` are those of its present run."""

    def __init__(
        self,
        thread: StoreThread,
        environment: str,
        figures: Callable[[], PrimitiveFigures],
        seals: Callable[[], "Seals"],
    ) -> None:
        self.locks = Locks(thread, environment, lambda: figures().locks)
        self._store = thread, environment, figures, seals

    @cached_property
    def idempotency(self) -> "Records":
        """The store for the middleware of ``Idempotency-Key``, and for ``once``."""
        from fuseboard.primitives.idempotency import Records

        thread, environment, figures, seals = self._store
        return Records(thread, environment, lambda: figures().once, seals)

    def lock(self, name: str, *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S) -> AsyncLock:
        """A lock of one process among all: ``async with agent.lock(name) as lock``; see docs/primitives.md.

        ``ttl_s``: for how long a process that dies keeps it. ``wait_s``: the longest wait for it, at most
        10 s. The block raises ``LockTaken`` and ``StoreUnavailable`` before it begins, and ``LockLost``
        after its end.
        """
        return self.locks.asynchronous(name, ttl_s, wait_s)

    def lock_all(
        self, names: Iterable[str], *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S
    ) -> "AsyncSeveralLocks":
        """Several locks, taken in the order of their names; ``wait_s`` is the wait for all of them."""
        from fuseboard.primitives.several_locks import AsyncSeveralLocks

        return AsyncSeveralLocks(self.locks.asynchronous, names, ttl_s, wait_s)

    def once(
        self, event: str, event_id: "EventId", *, keep_s: float = KEEP_S, lease_s: float = LEASE_S
    ) -> "AsyncOnce":
        """Work on an event that can be delivered again: ``async with agent.once("order-paid", event_id)``.

        The block raises ``AlreadyDone``, ``InProgress`` or ``StoreUnavailable`` before it begins, and
        ``ClaimLost`` after its end. ``keep_s``: how long the event is remembered as done. ``lease_s``: when
        it can be worked on again after its process died; a process that lives renews it.
        """
        from fuseboard.primitives.once import AsyncOnce

        return AsyncOnce(self.idempotency, event, event_id, keep_s, lease_s)

    def _lock_blocks(self) -> Blocks:
        return self.lock, self.locks.blocking


class ThreadPrimitives(LockDecorator):
    """The primitives of a blocking agent."""

    @abstractmethod
    def _primitives(self) -> AsyncPrimitives:
        """Return the primitives of the agent, which is started."""

    @abstractmethod
    async def _primitives_later(self) -> AsyncPrimitives:
        """Return the primitives to a coroutine on any loop."""

    @property
    def idempotency(self) -> "Records":
        """The store for the middleware of ``Idempotency-Key``, and for ``once``."""
        return self._primitives().idempotency

    def lock(self, name: str, *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S) -> BlockingLock:
        """See ``fuseboard.Agent.lock``: ``with agent.lock(name) as lock``."""
        return self._primitives().locks.blocking(name, ttl_s, wait_s)

    @asynccontextmanager
    async def alock(
        self, name: str, *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S
    ) -> AsyncIterator[AsyncLock]:
        """``lock`` for a coroutine on any loop, such as an asynchronous view."""
        agent = await self._primitives_later()
        async with agent.lock(name, ttl_s=ttl_s, wait_s=wait_s) as lock:
            yield lock

    def lock_all(
        self, names: Iterable[str], *, ttl_s: float = TTL_S, wait_s: float = MAX_WAIT_S
    ) -> "BlockingSeveralLocks":
        """See ``fuseboard.Agent.lock_all``."""
        from fuseboard.primitives.several_locks import BlockingSeveralLocks

        return BlockingSeveralLocks(self._primitives().locks.blocking, names, ttl_s, wait_s)

    def once(
        self, event: str, event_id: "EventId", *, keep_s: float = KEEP_S, lease_s: float = LEASE_S
    ) -> "BlockingOnce":
        """See ``fuseboard.Agent.once``: ``with agent.once(event, event_id)``."""
        from fuseboard.primitives.once import BlockingOnce

        return BlockingOnce(self.idempotency, event, event_id, keep_s, lease_s)

    @asynccontextmanager
    async def aonce(
        self, event: str, event_id: "EventId", *, keep_s: float = KEEP_S, lease_s: float = LEASE_S
    ) -> "AsyncIterator[AsyncOnce]":
        """``once`` for a coroutine on any loop, such as an asynchronous task."""
        agent = await self._primitives_later()
        async with agent.once(event, event_id, keep_s=keep_s, lease_s=lease_s) as run:
            yield run

    def _lock_blocks(self) -> Blocks:
        return self.alock, self.lock
