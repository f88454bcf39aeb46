"""Open-loop traffic through a bulkhead in virtual time: what waits, what is refused, and for how long."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fuseboard.contract.protection import Bulkhead as Settings
from fuseboard.contract.words import Reason, WhenFull
from fuseboard.protection import bulkhead as original

QUEUES = (WhenFull.QUEUE, WhenFull.QUEUE, WhenFull.QUEUE)
#: Ten slots for critical calls, and one for each other tier.
TEN = Settings(
    max_concurrent=12,
    shares=(84, 8, 8),
    queues=(10_000, 0, 0),
    when_full=QUEUES,
    adaptive=True,
    target_wait_ms=100,
)


@dataclass
class Second:
    """What happened in one second."""

    arrived: int = 0
    refused: int = 0
    done: int = 0
    size: int = 0
    waits: list[float] = field(default_factory=list)


async def traffic(
    seconds: int,
    per_second: Callable[[float], float],
    service_s: Callable[[float], float],
    *,
    settings: Settings = TEN,
    module: Any = original,
    expected_s: float = 0.02,
) -> list[Second]:
    """What happened in each second. Arrivals are random, with a fixed seed."""
    loop, chance = asyncio.get_running_loop(), random.Random(4)
    bulkhead = module.Bulkhead(settings, expected_s=expected_s)
    story = [Second() for _ in range(seconds)]
    begun = loop.time()
    calls = set()

    async def call(second: Second) -> None:
        asked = loop.time()
        try:
            seat = await bulkhead.enter(0)
        except module.NoSlotError as error:
            second.refused += error.reason in (Reason.BULKHEAD_FULL, Reason.QUEUE_TIMEOUT)
            return
        at = loop.time()
        second.waits.append(at - asked)
        await asyncio.sleep(service_s(at - begun))
        second.done += 1
        bulkhead.leave(seat, loop.time() - at, loop.time())

    while (passed := loop.time() - begun) < seconds:
        second = story[int(passed)]
        second.arrived += 1
        second.size = bulkhead.tiers[0].queue_limit
        calls.add(asyncio.create_task(call(second)))
        await asyncio.sleep(chance.expovariate(per_second(passed)))
    await asyncio.gather(*calls)
    return story


def quantile(part: float, story: list[Second]) -> float:
    waits = sorted(wait for second in story for wait in second.waits)
    return waits[int(part * len(waits))]


def refused_part(story: list[Second]) -> float:
    return sum(second.refused for second in story) / sum(second.arrived for second in story)
