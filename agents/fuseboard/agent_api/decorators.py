"""Decorators that run a function in a block of the agent, for async and blocking functions."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, cast

from fuseboard.agent_api.arguments import CALL_NAMES, check_name, check_names, check_tier
from fuseboard.agent_api.options import BlockOptions, Given, Neutral
from fuseboard.errors import Misconfigured
from fuseboard.subject import NOBODY, Subject

P = ParamSpec("P")
R = TypeVar("R")


class GivenOptions:
    """The options of a block. Functions among ``given`` get the arguments of each decorated call."""

    def __init__(self, fixed: dict[str, Any], **given: object) -> None:
        self._fixed = fixed
        self._given = given

    def of(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        return self._fixed | {
            name: option(*arguments, **named) if callable(option) else option
            for name, option in self._given.items()
        }


def in_block(
    function: Callable[P, R], block: Callable[..., AbstractContextManager[object]], options: GivenOptions
) -> Callable[P, R]:
    """Run every call of a blocking function in a block of its own."""

    @wraps(function)
    def decorated(*arguments: P.args, **named: P.kwargs) -> R:
        with block(**options.of(arguments, named)):
            return function(*arguments, **named)

    return decorated


def in_async_block(
    function: Callable[P, Any],
    block: Callable[..., AbstractAsyncContextManager[object]],
    options: GivenOptions,
) -> Callable[P, Any]:
    """Run every call of an async function in a block of its own."""

    @wraps(function)
    async def decorated(*arguments: P.args, **named: P.kwargs) -> Any:
        async with block(**options.of(arguments, named)):
            return await function(*arguments, **named)

    return decorated


def in_blocks(
    asynchronous: Callable[..., AbstractAsyncContextManager[object]],
    blocking: Callable[..., AbstractContextManager[object]],
    options: GivenOptions,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: every call of an async or a blocking function is in a block of its own."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Misconfigured(
                "a generator runs when it is read: use the block inside it instead of the decorator"
            )
        if not inspect.iscoroutinefunction(function):
            return in_block(function, blocking, options)
        return cast(Callable[P, R], in_async_block(function, asynchronous, options))

    return decorate


class Decorators(ABC):
    """``limit`` and ``guard``, the same for both kinds of agent."""

    def limit(
        self,
        tenant: Given[str | None],
        cost: Given[int] = 1,
        *,
        costs: Given[Mapping[str, int] | None] = None,
        subject: Given[Subject] = NOBODY,
        wait_s: float | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a ``request``, and raises ``Refused`` when it is refused.

        ``tenant``, ``cost``, ``costs`` and ``subject`` may be functions, which get the arguments of
        the call. A blocking function must not be called on the event loop.
        """
        options = GivenOptions({"wait_s": wait_s}, tenant=tenant, cost=cost, costs=costs, subject=subject)
        return self._decorator("request", options)

    def guard(
        self,
        dependency: str,
        *,
        tenant: Given[str] = "",
        cost: Given[int] = 1,
        costs: Given[Mapping[str, int] | None] = None,
        neutral: Neutral = (),
        **options: Unpack[BlockOptions],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a ``call`` to the dependency.

        ``tenant``, ``cost`` and ``costs`` may be functions, as in ``limit``.
        """
        check_name("a dependency", dependency)
        check_names(options.keys(), CALL_NAMES)
        check_tier(options.get("tier"))
        # An exception class in ``neutral`` is callable, but never called.
        fixed: dict[str, Any] = {"dependency": dependency, "neutral": neutral, **options}
        return self._decorator("call", GivenOptions(fixed, tenant=tenant, cost=cost, costs=costs))

    def _decorator(self, block: str, options: GivenOptions) -> Callable[[Callable[P, R]], Callable[P, R]]:
        return in_blocks(*self._blocks(block), options)

    @abstractmethod
    def _blocks(
        self, name: str
    ) -> tuple[
        Callable[..., AbstractAsyncContextManager[object]], Callable[..., AbstractContextManager[object]]
    ]:
        """The block of this name for async functions, and the one for blocking functions."""
