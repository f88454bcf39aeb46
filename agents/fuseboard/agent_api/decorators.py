"""Decorators that run a function in a block of the agent, for async and blocking functions."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncContextDecorator,
    ContextDecorator,
)
from functools import partial, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, Unpack, cast

from fuseboard.agent_api.arguments import BLOCK_NAMES, check_name, check_names, check_tier
from fuseboard.agent_api.options import BlockOptions, Given, Neutral, list_options
from fuseboard.errors import Misconfigured
from fuseboard.subject import NO_SUBJECT, Subject

P = ParamSpec("P")
R = TypeVar("R")

AsyncBlocks: TypeAlias = Callable[..., AbstractAsyncContextManager[object]]
BlockingBlocks: TypeAlias = Callable[..., AbstractContextManager[object]]
#: The block for calls of async functions, and the one for calls of blocking functions.
Blocks: TypeAlias = tuple[AsyncBlocks, BlockingBlocks]


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


def in_block(function: Callable[P, R], block: BlockingBlocks, options: GivenOptions) -> Callable[P, R]:
    """Run every call of a blocking function in a block of its own."""

    @wraps(function)
    def decorated(*arguments: P.args, **named: P.kwargs) -> R:
        with block(**options.of(arguments, named)):
            result = function(*arguments, **named)
            refuse_unfinished(function, result)
            return result

    return decorated


def in_async_block(function: Callable[P, Any], block: AsyncBlocks, options: GivenOptions) -> Callable[P, Any]:
    """Run every call of an async function in a block of its own."""

    @wraps(function)
    async def decorated(*arguments: P.args, **named: P.kwargs) -> Any:
        async with block(**options.of(arguments, named)):
            return await function(*arguments, **named)

    return decorated


def in_blocks(
    asynchronous: AsyncBlocks, blocking: BlockingBlocks, options: GivenOptions
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: every call of an async or a blocking function is in a block of its own."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not is_asynchronous(function, "use the block inside it instead of the decorator"):
            return in_block(function, blocking, options)
        return cast(Callable[P, R], in_async_block(function, asynchronous, options))

    return decorate


def is_asynchronous(function: Any, instead: str) -> bool:
    """Whether a decorated function is async. Raises ``Misconfigured`` for one that no block can guard."""
    if isinstance(function, staticmethod | classmethod) or not callable(function):
        raise Misconfigured(
            f"the decorator is for functions, not for a {type(function).__name__}: write it next to 'def',"
            " below other decorators"
        )
    forms = [function]
    while isinstance(forms[-1], partial):
        forms.append(forms[-1].func)
    if not isinstance(forms[-1], type):
        forms.append(getattr(forms[-1], "__call__", None))  # noqa: B004 - an object whose call is a coroutine
    if any(inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in forms):
        raise Misconfigured(f"a generator runs when it is read: {instead}")
    return any(inspect.iscoroutinefunction(form) for form in forms)


def refuse_unfinished(function: Callable[..., object], result: object) -> None:
    """Raise ``Misconfigured`` if a decorated function has only prepared its work: no block guards that."""
    if not _is_unfinished(function, result):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise Misconfigured(
        f"the decorated function returned a {type(result).__name__}, whose work is still to be done: decorate"
        " the 'async def' that does it, or use the block around the work"
    )


def _is_unfinished(function: Callable[..., object], result: object) -> bool:
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        # A generator that a function returns may read an answer that it has. The body of a function may also
        # be the generator, below another decorator.
        body = inspect.unwrap(function)
        return inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)
    return inspect.isawaitable(result) or isinstance(result, ContextDecorator | AsyncContextDecorator)


class Decorators(ABC):
    """``limit`` and ``guard``, the same for both kinds of agent."""

    def limit(
        self,
        tenant: Given[str | None],
        cost: Given[int] = 1,
        *,
        costs: Given[Mapping[str, int] | None] = None,
        subject: Given[Subject] = NO_SUBJECT,
        wait_s: float | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a ``request``, and raises ``Refused`` when it is refused.

        ``tenant``, ``cost``, ``costs`` and ``subject`` may be functions, which get the arguments of
        the call. A blocking function must not be called on the event loop.
        """
        options = GivenOptions({"wait_s": wait_s}, tenant=tenant, cost=cost, costs=costs, subject=subject)
        return self._decorator("request", options)

    @list_options()
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
        check_names("guard", options.keys(), BLOCK_NAMES)
        check_tier(options.get("tier"))
        # An exception class in ``neutral`` is callable, but never called.
        fixed: dict[str, Any] = {"dependency": dependency, "neutral": neutral, **options}
        return self._decorator("call", GivenOptions(fixed, tenant=tenant, cost=cost, costs=costs))

    def _decorator(self, block: str, options: GivenOptions) -> Callable[[Callable[P, R]], Callable[P, R]]:
        return in_blocks(*self._blocks(block), options)

    @abstractmethod
    def _blocks(self, name: str) -> Blocks:
        """The block of this name for async functions, and the one for blocking functions."""
