"""Blocks that explain the other keyword: ``with`` where ``async with`` is meant, and the reverse."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncContextDecorator,
    ContextDecorator,
    asynccontextmanager,
    contextmanager,
)
from functools import wraps
from types import TracebackType
from typing import Generic, NoReturn, ParamSpec, TypeVar

from fuseboard.errors import Misconfigured

P = ParamSpec("P")
T = TypeVar("T")


class AsyncBlock(AbstractAsyncContextManager[T], AsyncContextDecorator, Generic[T]):
    """A block for ``async with``."""

    def __enter__(self) -> NoReturn:
        raise Misconfigured(
            "this block is for coroutines: use 'async with', or an agent of fuseboard.blocking in other code"
        )

    def __exit__(self, *_: object) -> None:
        """Never called. Python looks for it before it enters."""


class BlockingBlock(AbstractContextManager[T], ContextDecorator, Generic[T]):
    """A block for ``with``."""

    async def __aenter__(self) -> NoReturn:
        raise Misconfigured(
            "this block is for code that blocks: use 'with', or acall and arequest in a coroutine"
        )

    async def __aexit__(self, *_: object) -> None:
        """Never called. Python looks for it before it enters."""


def async_block(function: Callable[P, AsyncIterator[T]]) -> Callable[P, AsyncBlock[T]]:
    """``contextlib.asynccontextmanager`` for a block that explains ``with``."""
    manager = asynccontextmanager(function)

    @wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> AsyncBlock[T]:
        return _AsyncGenerated(lambda: manager(*args, **kwargs))

    return block


def blocking_block(function: Callable[P, Iterator[T]]) -> Callable[P, BlockingBlock[T]]:
    """``contextlib.contextmanager`` for a block that explains ``async with``."""
    manager = contextmanager(function)

    @wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> BlockingBlock[T]:
        return _Generated(lambda: manager(*args, **kwargs))

    return block


class _AsyncGenerated(AsyncBlock[T]):
    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._manager = make()

    def _recreate_cm(self) -> "_AsyncGenerated[T]":
        """A new block for each call of a decorated function."""
        return _AsyncGenerated(self._make)

    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, trace)


class _Generated(BlockingBlock[T]):
    def __init__(self, make: Callable[[], AbstractContextManager[T]]) -> None:
        self._make = make
        self._manager = make()

    def _recreate_cm(self) -> "_Generated[T]":
        """A new block for each call of a decorated function."""
        return _Generated(self._make)

    def __enter__(self) -> T:
        return self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._manager.__exit__(kind, error, trace)
