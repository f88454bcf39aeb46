"""T4: Little's law in a steady state, with calls of very different lengths."""

import asyncio

from fuseboard.contract.words import WhenFull
from fuseboard.protection.bulkhead import Bulkhead
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.result import Result, ms
from tools.experiments.traffic import Vendor, arrive, one_tier, with_bulkhead

SLOTS, SERVICE_S, LOAD, SECONDS, STEP_S = 20, 0.050, 0.9, 200.0, 0.010


def little() -> Result:
    async def play() -> tuple[list[tuple[float, int]], float, float, float, float]:
        settings = one_tier(
            SLOTS,
            queues=(10_000, 0, 0),
            queue_timeout_ms=600_000,
            when_full=(WhenFull.QUEUE, WhenFull.ABORT, WhenFull.DISCARD),
        )
        bulkhead, loop = Bulkhead(settings), asyncio.get_running_loop()
        waiting: list[tuple[float, int]] = []

        async def watch() -> None:
            while True:
                waiting.append((loop.time(), bulkhead.waiting))
                await asyncio.sleep(STEP_S)

        watching = asyncio.ensure_future(watch())
        rate = LOAD * SLOTS / (SERVICE_S * 1.0)
        vendor = Vendor(SERVICE_S, seed=4, spread="heavy")
        calls = await arrive(lambda at: rate, SECONDS, with_bulkhead(bulkhead, vendor), seed=3)
        watching.cancel()
        mean_wait_s = sum(call.wait_s for call in calls) / len(calls)
        arrivals = len(calls) / SECONDS
        inside = [count for at, count in waiting if at < SECONDS]
        return waiting, arrivals, mean_wait_s, sum(inside) / len(inside), max(call.wait_s for call in calls)

    waiting, arrivals, mean_wait_s, length, longest_s = run_virtually(play())
    predicted = arrivals * mean_wait_s
    error = abs(length - predicted) / predicted
    step = 100
    means = [
        (waiting[at][0], sum(count for _, count in waiting[at : at + step]) / step)
        for at in range(0, int(SECONDS / STEP_S), step)
    ]
    result = Result(
        key="T4",
        title="Little's law",
        traffic=f"{SLOTS} slots, calls of {SERVICE_S * 1000:.0f} ms on average with a long tail, {LOAD:.0%}"
        f" of the capacity for {SECONDS:.0f} s. The length of the queue is sampled every"
        f" {STEP_S * 1000:.0f} ms.",
        expected="The mean length L of the queue is arrivals per second times the mean wait, within 10 %.",
        charts=(
            Chart(
                "Calls that wait, mean of each second",
                "seconds",
                "calls",
                {"observed": means},
                {"predicted": predicted},
            ),
        ),
        table=(
            ("arrivals per s", "mean wait", "longest wait", "predicted L", "observed L", "error"),
            (
                f"{arrivals:.1f}",
                ms(mean_wait_s),
                ms(longest_s),
                f"{predicted:.2f}",
                f"{length:.2f}",
                f"{error:.2%}",
            ),
        ),
    )
    result.check(f"The error is {error:.2%}, at most 10 %", error <= 0.10)
    return result
