"""The pump of a backlog: with questions that a test answers, it neither spins nor forgets a worker."""

import asyncio
from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fuseboard.backlog.pump import Pump
from fuseboard.backlog.scripts import BacklogScripts, Granted, Taken
from fuseboard.contract.words import BreakerState


class Breakers(dict[str, Any]):
    """The one of the dependency, and no override."""

    def override(self, dependency: str) -> None:
        return None


def pump(take: Callable[[int], Any], *, wait_locally: Callable[[], float] = lambda: 0.0) -> Pump:
    local = SimpleNamespace(state=BreakerState.OPEN)
    breaker = SimpleNamespace(name="payments", local=local, wait_locally=wait_locally)
    calls = SimpleNamespace(breakers=Breakers(payments=breaker), forced_open=lambda _: None)
    scripts = SimpleNamespace(dependency="payments", calls=calls, take=take)
    return Pump(cast(BacklogScripts, scripts), UNUSED.append)


UNUSED: list[Granted] = []
JOB = cast(Granted, SimpleNamespace())


@pytest.fixture(autouse=True)
def _none_unused():
    UNUSED.clear()


async def one_job(most: int) -> Taken:
    return Taken([JOB], False, 0.0, 0.0, False)


async def test_a_hint_does_not_make_a_pump_spin_while_its_own_breaker_is_open():
    until, looks = monotonic() + 0.2, []

    def wait_locally() -> float:
        looks.append(monotonic())
        return max(0.0, until - monotonic())

    asking = pump(one_job, wait_locally=wait_locally)
    asking.hint()
    assert await asking.next() is JOB
    assert len(looks) < 10


async def test_workers_get_an_unexpected_error_instead_of_waiting_for_ever():
    async def fails(most: int) -> Taken:
        raise ValueError("a bug")

    asking = pump(fails)
    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(asking.next(), 20)


async def test_a_stop_waits_for_the_question_in_progress_and_hands_its_jobs_back():
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(most: int) -> Taken:
        asked.set()
        await answer.wait()
        return await one_job(most)

    asking = pump(slow)
    worker = asyncio.create_task(asking.next())
    await asked.wait()
    asyncio.get_running_loop().call_later(0.01, answer.set)
    await asking.stop()
    assert UNUSED == [JOB]
    with pytest.raises(asyncio.CancelledError):
        await worker
