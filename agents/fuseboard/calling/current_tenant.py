"""The tenant that this task works for: calls to language models are charged to its quotas.

::

    with fuseboard.tenant("acme"):
        ...  # a job: the middlewares do this for requests

Tasks and threads that are started with this context inherit it.
"""

from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self, TypeVar

from fuseboard.errors import Misconfigured

T = TypeVar("T")

_current: ContextVar[str] = ContextVar("fuseboard_tenant", default="")

#: Both are the methods themselves, because every request of a middleware calls them.
enter_tenant = _current.set
leave_tenant = _current.reset
#: The tenant of this task; empty for none.
current_tenant = _current.get


class tenant:  # noqa: N801 - used like a function
    """The block works for this tenant. An empty name is none. Each object is used once."""

    __slots__ = ("_name", "_token")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise Misconfigured(f"a tenant is text, not {type(name).__name__}")
        self._name = name
        self._token: Token[str] | None = None

    def __enter__(self) -> Self:
        self._token = enter_tenant(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is not None:
            leave_tenant(token)


def each_for(name: str, parts: Iterator[T]) -> Iterator[T]:
    """``parts``, each made for this tenant: a server reads a body after the middleware has returned it."""
    while True:
        with tenant(name):
            try:
                part = next(parts)
            except StopIteration:
                return
        yield part


async def each_for_async(name: str, parts: AsyncIterator[T]) -> AsyncIterator[T]:
    """``each_for``, on an event loop."""
    while True:
        with tenant(name):
            try:
                part = await anext(parts)
            except StopAsyncIteration:
                return
        yield part
