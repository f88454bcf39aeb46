"""A deadline is inherited, and only shrinks."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import copy_context

import pytest

import fuseboard
from fuseboard.calling import deadline


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its first item."""
    time = [100.0]
    monkeypatch.setattr(deadline, "monotonic", lambda: time[0])
    return time


def test_without_a_deadline_nothing_is_bounded():
    assert (deadline.until(), deadline.left_s(), deadline.bounded(None)) == (None, None, None)
    assert deadline.bounded(3.0) == 3.0


def test_a_deadline_inside_another_only_shrinks(now: list[float]):
    with fuseboard.deadline(8):
        assert deadline.left_s() == 8
        with fuseboard.deadline(20) as longer:
            assert (deadline.left_s(), longer.until) == (8, 108.0)
        with fuseboard.deadline(2):
            assert deadline.left_s() == 2
            now[0] += 5
            assert deadline.left_s() == 0
        assert (deadline.left_s(), deadline.bounded(1.0), deadline.bounded(9.0)) == (3, 1.0, 3)
        assert deadline.bounded(None) == 3
    assert deadline.left_s() is None


async def test_tasks_and_threads_inherit_it(now: list[float]):
    async def shrink() -> float | None:
        with fuseboard.deadline(1):
            await asyncio.sleep(0)
            return deadline.left_s()

    with fuseboard.deadline(8):
        assert await asyncio.gather(shrink(), asyncio.to_thread(deadline.left_s)) == [1, 8]
        assert deadline.left_s() == 8
    other: list[float | None] = []
    thread = threading.Thread(target=lambda: other.append(deadline.left_s()))
    thread.start()
    thread.join()
    assert other == [None]


@pytest.mark.parametrize("within_s", [0, -1, math.nan, math.inf])
def test_a_deadline_is_in_the_future(within_s: float):
    with pytest.raises(fuseboard.Misconfigured, match="deadline"):
        fuseboard.deadline(within_s)


def test_a_block_that_raises_ends_its_deadline():
    with pytest.raises(KeyError), fuseboard.deadline(5):
        raise KeyError
    assert deadline.left_s() is None


def test_a_generator_that_is_resumed_in_another_context_ends_normally() -> None:
    def parts() -> Iterator[int]:
        with fuseboard.deadline(5):
            yield 1
            yield 2

    generator = parts()
    found = [copy_context().run(next, generator, None) for _ in range(3)]
    assert found == [1, 2, None]


async def test_an_abandoned_generator_takes_its_deadline_with_it() -> None:
    """The loop closes it in another context. The consumer kept a deadline that passes, so its calls ended."""

    async def parts() -> AsyncIterator[int]:
        with fuseboard.deadline(5):
            yield 1
            yield 2

    generator = parts()
    with fuseboard.deadline(60):
        async for _ in generator:
            break
        assert (deadline.left_s() or 0) <= 5
        await asyncio.create_task(generator.aclose())
        assert (deadline.left_s() or 0) > 5
        with fuseboard.deadline(2):
            assert (deadline.left_s() or 9) <= 2
        assert (deadline.left_s() or 0) > 5
    assert deadline.left_s() is None
