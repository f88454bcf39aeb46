"""Decorators over the blocks of an agent, for functions of both kinds."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from fuseboard.errors import Misconfigured
from fuseboard.subject import NOBODY, Subject
from fuseboard.surface.arguments import check_name

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

#: Exceptions that say nothing about a dependency.
Neutral: TypeAlias = tuple[type[Exception], ...]

#: A value, or a function that gets the decorated function's arguments and returns it.
Given: TypeAlias = V | Callable[..., V]


def value_of(given: Given[V], arguments: tuple[Any, ...], named: dict[str, Any]) -> V:
    return given(*arguments, **named) if callable(given) else given


def surround(
    function: Callable[P, R],
    *,
    asynchronous: Callable[..., AbstractAsyncContextManager[object]] | None,
    blocking: Callable[..., AbstractContextManager[object]],
) -> Callable[P, R]:
    """Run ``function`` in a block made of its arguments. Raises ``Misconfigured`` for generators."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misconfigured("a generator runs when it is read: use the block inside of it, not the decorator")
    if not inspect.iscoroutinefunction(function):

        @wraps(function)
        def in_block(*arguments: P.args, **named: P.kwargs) -> R:
            with blocking(arguments, named):
                return function(*arguments, **named)

        return in_block
    if asynchronous is None:
        raise Misconfigured("an async function needs an agent of fuseboard, not of fuseboard.blocking")
    block, awaited = asynchronous, cast(Callable[..., Any], function)

    @wraps(function)
    async def in_async_block(*arguments: P.args, **named: P.kwargs) -> Any:
        async with block(arguments, named):
            return await awaited(*arguments, **named)

    return cast(Callable[P, R], in_async_block)


class Decorators(ABC):
    """``limit`` and ``guard``, the same for both kinds of agent."""

    def limit(
        self,
        tenant: Given[str | None],
        cost: Given[int] = 1,
        *,
        costs: Given[Mapping[str, int] | None] = None,
        subject: Given[Subject] = NOBODY,
        wait_s: float = 0.0,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a ``request``. Raises ``Refused`` then.

        What is a function here gets the arguments of the call. A blocking function must not be
        called on the event loop.
        """

        def given(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
            options = {"tenant": tenant, "cost": cost, "costs": costs, "subject": subject}
            values = {name: value_of(option, arguments, named) for name, option in options.items()}
            return values | {"wait_s": wait_s}

        return self._decorator("request", given)

    def guard(
        self,
        dependency: str,
        *,
        tenant: Given[str] = "",
        cost: Given[int] = 1,
        costs: Given[Mapping[str, int] | None] = None,
        spend_quota: bool = False,
        wait_s: float = 0.0,
        neutral: Neutral = (),
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a ``call`` to the dependency; as ``limit`` otherwise."""
        check_name("a dependency", dependency)
        steady = {
            "dependency": dependency,
            "spend_quota": spend_quota,
            "wait_s": wait_s,
            "neutral": neutral,
        }

        def given(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
            options = {"tenant": tenant, "cost": cost, "costs": costs}
            return steady | {name: value_of(option, arguments, named) for name, option in options.items()}

        return self._decorator("call", given)

    def _decorator(
        self, block: str, given: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        asynchronous, blocking = self._blocks(block)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            return surround(
                function,
                asynchronous=asynchronous
                and (lambda arguments, named: asynchronous(**given(arguments, named))),
                blocking=lambda arguments, named: blocking(**given(arguments, named)),
            )

        return decorate

    @abstractmethod
    def _blocks(
        self, name: str
    ) -> tuple[
        Callable[..., AbstractAsyncContextManager[object]] | None,
        Callable[..., AbstractContextManager[object]],
    ]:
        """The block of this name for async functions, if there is one, and for blocking ones."""
