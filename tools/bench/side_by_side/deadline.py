"""The cost of the deadline, and how often it blames Redis for a busy loop."""

import asyncio
import statistics
import time

from tools.bench.side_by_side import ours
from tools.bench.side_by_side.bars import Results, say
from tools.bench.side_by_side.figures import closed_loop
from tools.bench.side_by_side.shared_only import check_shared

CALLERS = 200
ROUNDS = 60
ROUND_S = 0.08
#: CPU that a caller's own work takes between two decisions: with 200 of them, the loop is never idle.
WORK_S = 50e-6
SATURATED_S = 5.0


async def measure(url: str, redis_pid: int, results: Results) -> None:
    await _cost(url, redis_pid, results)
    await _false_timeouts(url, results)


async def _cost(url: str, redis_pid: int, results: Results) -> None:
    """CPU per decision with the deadline, relative to the same agent without a deadline.

    With the shipped deadline, a busy machine alone makes local decisions: rounds with any do not count.
    """
    tuning = ours.SHIPPED_DEADLINE
    async with (
        ours.running(url, "watched", tuning, may_decide_locally=True) as watched,
        ours.running(url, "unwatched", tuning, may_decide_locally=True) as unwatched,
    ):
        unwatched.admission.batcher._watch = lambda question: None
        cpu: dict[str, list[float]] = {"watched": [], "unwatched": []}
        contenders = [("watched", watched, watched.call(20)), ("unwatched", unwatched, unwatched.call(20))]
        for number in range(-1, ROUNDS):
            # The second contender finds a warmer machine: alternate the order, too.
            contenders.reverse()
            for name, pod, call in contenders:
                local = pod.counters.local_decisions
                figures = await closed_loop(call, callers=CALLERS, seconds=ROUND_S, redis_pid=redis_pid)
                if number >= 0 and pod.counters.local_decisions == local:
                    cpu[name].append(figures.cpu)
        for name, pod, _ in contenders:
            if len(cpu[name]) < ROUNDS // 2:
                check_shared(name, pod.counters.local_decisions)
    extra = _undisturbed(cpu["watched"]) / _undisturbed(cpu["unwatched"]) - 1
    results.ratios["deadline_cost"] = max(0.0, extra)
    say(f"deadline: {extra:+.1%} CPU per decision with {CALLERS} callers")


def _undisturbed(cpu: list[float]) -> float:
    """A few per cent are less than what other processes do to a cache: use the least disturbed rounds."""
    return statistics.mean(sorted(cpu)[: len(cpu) // 4])


async def _false_timeouts(url: str, results: Results) -> None:
    """Decisions of a saturated loop with a healthy Redis that gave up on it."""
    async with ours.running(url, "saturated", ours.SHIPPED_DEADLINE, may_decide_locally=True) as pod:
        call, decided, running = pod.call(20), 0, True

        async def work(number: int) -> None:
            nonlocal decided
            while running:
                await call(number)
                decided += 1
                await asyncio.sleep(0)
                until = time.thread_time() + WORK_S
                while time.thread_time() < until:
                    pass

        tasks = [asyncio.ensure_future(work(number)) for number in range(CALLERS)]
        await asyncio.sleep(SATURATED_S)
        running = False
        await asyncio.gather(*tasks)
        alone = pod.counters.local_decisions
    results.ratios["false_timeouts"] = alone / decided
    late = pod.counters.store_timeouts
    say(f"saturated loop: {alone} of {decided:,} decisions without Redis, {late} questions")
