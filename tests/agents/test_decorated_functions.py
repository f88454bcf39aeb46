"""What the decorators of an agent accept: functions whose work is over when they return. Nothing else."""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fuseboard import Misconfigured
from fuseboard.testing import FakeAgent, fuseboard_agent

__all__ = ["fuseboard_agent"]

Decorator = Callable[[Any], Any]
DECORATORS = ["guard", "limit", "retry", "locked"]


@pytest.fixture(params=DECORATORS)
def decorator(request: pytest.FixtureRequest, fuseboard_agent: FakeAgent) -> Decorator:
    if request.param == "retry":
        return fuseboard_agent.retry("vendor", idempotent=True)
    found: Decorator = getattr(fuseboard_agent, request.param)("vendor")
    return found


def rows() -> Iterator[int]:
    yield 1


async def pages() -> AsyncIterator[int]:
    yield 1


async def answer(value: int = 1) -> int:
    return value


class Rows:
    def __call__(self) -> Iterator[int]:
        yield 1


class Pages:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


class Answer:
    async def __call__(self) -> int:
        return 1

    async def method(self) -> int:
        return 1


@functools.wraps(rows)
def logged_rows() -> Iterator[int]:
    return rows()


@functools.wraps(answer)
def logged_answer() -> Any:
    return answer()


@pytest.mark.parametrize(
    "function",
    [answer, functools.partial(answer, 1), Answer(), functools.partial(Answer()), Answer().method],
    ids=["function", "partial", "object", "partial of an object", "method"],
)
async def test_every_form_of_an_async_function_is_awaited_in_its_block(
    decorator: Decorator, function: Any
) -> None:
    assert await decorator(function)() == 1


@pytest.mark.parametrize(
    "generator",
    [rows, pages, functools.partial(rows), functools.partial(pages), Rows(), Pages(), Rows().__call__],
    ids=["rows", "pages", "partial rows", "partial pages", "object", "async object", "method"],
)
def test_a_generator_is_refused_at_the_decoration(decorator: Decorator, generator: Any) -> None:
    with pytest.raises(Misconfigured, match="a generator runs when it is read"):
        decorator(generator)


@pytest.mark.parametrize(
    "other",
    [staticmethod(answer), classmethod(answer), functools.partialmethod(answer), property(answer), 3],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_function_is_refused_at_the_decoration(decorator: Decorator, other: Any) -> None:
    with pytest.raises(Misconfigured, match="write it next to 'def'"):
        decorator(other)


@pytest.mark.parametrize(
    "unfinished",
    [
        lambda: answer(),
        logged_answer,
        logged_rows,
        contextlib.contextmanager(rows),
        contextlib.asynccontextmanager(pages),
    ],
    ids=["coroutine", "wrapped coroutine", "wrapped generator", "context manager", "async context manager"],
)
def test_a_function_that_only_prepares_its_work_is_refused_at_the_call(
    decorator: Decorator, unfinished: Any
) -> None:
    with pytest.raises(Misconfigured, match="still to be done"):
        decorator(unfinished)()


def test_a_function_may_return_an_iterator_over_an_answer_that_it_has(decorator: Decorator) -> None:
    def lines() -> Iterator[str]:
        received = ["a", "b"]
        return (line.upper() for line in received)

    assert list(decorator(lines)()) == ["A", "B"]
