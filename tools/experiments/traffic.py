"""Traffic against a pod in virtual time: arrivals that do not wait for answers, as those of the internet."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from fuseboard.contract.protection import Bulkhead as Settings
from fuseboard.protection.bulkhead import Bulkhead, NoSlotError
from tools.experiments.result import quantile


@dataclass(slots=True)
class Call:
    """One call, as its caller saw it. Times are seconds since the start."""

    at: float
    #: A tier or a priority; higher is more important.
    level: int
    #: ``served``, or why not.
    outcome: str = ""
    wait_s: float = 0.0
    ended: float = 0.0

    @property
    def served(self) -> bool:
        return self.outcome == "served"

    @property
    def took_s(self) -> float:
        return self.ended - self.at


Serve = Callable[[Call], Awaitable[None]]


async def arrive(
    rate: Callable[[float], float],
    seconds: float,
    serve: Serve,
    *,
    seed: int,
    level: Callable[[random.Random], int] = lambda draw: 0,
    drain_s: float = 60.0,
) -> list[Call]:
    """Calls with exponential gaps at ``rate(t)`` per second, and ``drain_s`` more for those that wait."""
    draw, loop = random.Random(seed), asyncio.get_running_loop()
    calls: list[Call] = []
    tasks: set[asyncio.Task[None]] = set()
    start = loop.time()

    async def one(call: Call) -> None:
        await serve(call)
        call.ended = loop.time() - start

    due = draw.expovariate(rate(0.0))
    while due < seconds:
        await asyncio.sleep(start + due - loop.time())
        call = Call(at=due, level=level(draw))
        calls.append(call)
        task = asyncio.ensure_future(one(call))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += draw.expovariate(rate(due))
    if tasks:
        await asyncio.wait(tasks, timeout=drain_s)
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for call in calls:
        if not call.outcome:
            call.outcome, call.ended = "no answer", float("inf")
    return calls


class Vendor:
    """Each call takes a random time, ``slowdown`` times as long as usual."""

    def __init__(self, mean_s: float, *, seed: int, spread: str = "exponential") -> None:
        self.mean_s, self.spread = mean_s, spread
        self.slowdown = 1.0
        self._draw = random.Random(seed)

    async def work(self) -> None:
        mean_s = self.mean_s * self.slowdown
        if self.spread == "fixed":
            await asyncio.sleep(mean_s)
        elif self.spread == "exponential":
            await asyncio.sleep(self._draw.expovariate(1 / mean_s))
        else:  # heavy: most calls are short, some take ten times as long
            await asyncio.sleep(mean_s * self._draw.lognormvariate(-0.5, 1.0))


def with_bulkhead(bulkhead: Bulkhead, vendor: Vendor, tier: Callable[[Call], int] = lambda call: 0) -> Serve:
    """Serve each call in a slot of ``bulkhead``, as the admission does."""
    loop = asyncio.get_running_loop()

    async def serve(call: Call) -> None:
        asked = loop.time()
        try:
            seat = await bulkhead.enter(tier(call))
        except NoSlotError as refusal:
            call.outcome, call.wait_s = refusal.reason, loop.time() - asked
            return
        call.wait_s = loop.time() - asked
        began = loop.time()
        try:
            await vendor.work()
            call.outcome = "served"
        finally:
            bulkhead.leave(seat, loop.time() - began, loop.time())

    return serve


def without_agent(slots: int, vendor: Vendor) -> Serve:
    """Serve each call in order, in one of ``slots`` connections, however long it waits for one."""
    loop, connections = asyncio.get_running_loop(), asyncio.Semaphore(slots)

    async def serve(call: Call) -> None:
        asked = loop.time()
        async with connections:
            call.wait_s = loop.time() - asked
            await vendor.work()
            call.outcome = "served"

    return serve


def one_tier(slots: int, **settings: object) -> Settings:
    """Settings of a bulkhead with ``slots`` for critical calls, and one for each other tier."""
    rest = 100 // (slots + 2) + 1
    values = {"max_concurrent": slots + 2, "shares": (100 - 2 * rest, rest, rest)}
    return Settings(**(values | settings))  # type: ignore[arg-type]


def per_second(calls: Iterable[Call], *, step_s: float = 1.0) -> dict[int, list[Call]]:
    """Number of the step -> the calls that arrived in it."""
    found: dict[int, list[Call]] = {}
    for call in calls:
        found.setdefault(int(call.at / step_s), []).append(call)
    return found


def waits(calls: Iterable[Call], part: float) -> float | None:
    return quantile([call.wait_s for call in calls if call.served], part)


def times(calls: Iterable[Call], part: float) -> float | None:
    return quantile([call.took_s for call in calls if call.served], part)


def line(
    calls: Iterable[Call], figure: Callable[[list[Call]], float | None], *, step_s: float = 1.0
) -> list[tuple[float, float]]:
    """``figure`` of each step that has one."""
    steps = sorted(per_second(calls, step_s=step_s).items())
    return [(step * step_s, value) for step, some in steps if (value := figure(some)) is not None]
