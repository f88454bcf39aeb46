"""T5: load from 50 to 200 percent of the capacity, in steps."""

from collections.abc import Callable
from itertools import pairwise

from fuseboard.contract.words import WhenFull
from fuseboard.protection.bulkhead import Bulkhead
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.result import Result, ms, share
from tools.experiments.traffic import (
    Call,
    Serve,
    Vendor,
    arrive,
    one_tier,
    times,
    with_bulkhead,
    without_agent,
)

SLOTS, SERVICE_S, TARGET_S, STEP_S = 10, 0.020, 0.100, 20.0
CAPACITY = SLOTS / SERVICE_S
STEPS = (50, 75, 90, 100, 125, 150, 200)


def load_steps() -> Result:
    async def play(percent: int, serving: Callable[[Vendor], Serve]) -> list[Call]:
        # After a pause the next step begins empty, so that one overload does not spoil the next.
        return await arrive(
            lambda at: CAPACITY * percent / 100,
            STEP_S,
            serving(Vendor(SERVICE_S, seed=percent)),
            seed=percent,
            drain_s=5,
        )

    async def protected(percent: int) -> list[Call]:
        settings = one_tier(
            SLOTS,
            adaptive=True,
            target_wait_ms=int(TARGET_S * 1000),
            when_full=(WhenFull.QUEUE, WhenFull.ABORT, WhenFull.DISCARD),
        )
        return await play(
            percent, lambda vendor: with_bulkhead(Bulkhead(settings, expected_s=SERVICE_S), vendor)
        )

    async def unprotected(percent: int) -> list[Call]:
        return await play(percent, lambda vendor: without_agent(SLOTS, vendor))

    ours = {percent: run_virtually(protected(percent)) for percent in STEPS}
    theirs = {percent: run_virtually(unprotected(percent)) for percent in STEPS}

    def rate(calls: list[Call]) -> float:
        return sum(call.served and call.ended <= STEP_S for call in calls) / STEP_S

    def refused(calls: list[Call]) -> float:
        return sum(not call.served for call in calls) / len(calls)

    def late(calls: list[Call], part: float) -> float:
        return (times(calls, part) or 0.0) * 1000

    rows = [
        (
            f"{percent} %",
            f"{rate(ours[percent]):.0f}",
            share(sum(not call.served for call in ours[percent]), len(ours[percent])),
            *(ms(times(ours[percent], part)) for part in (0.5, 0.95, 0.99)),
            ms(times(theirs[percent], 0.95)),
        )
        for percent in STEPS
    ]
    result = Result(
        key="T5",
        title="Load in steps",
        traffic=f"{SLOTS} slots, calls of 20 ms on average, {STEP_S:.0f} s each of "
        f"{', '.join(map(str, STEPS))} % of {CAPACITY:.0f}/s.",
        expected="Throughput reaches the capacity and stays there, times grow smoothly to a bound, and the"
        " refused part grows smoothly.",
        charts=(
            Chart(
                "p95 of the time of a served call",
                "load, % of the capacity",
                "ms",
                {
                    "with the agent": [(percent, late(ours[percent], 0.95)) for percent in STEPS],
                    "without": [(percent, late(theirs[percent], 0.95)) for percent in STEPS],
                },
                most=600,
            ),
            Chart(
                "Served calls per second",
                "load, % of the capacity",
                "calls per s",
                {
                    "with the agent": [(percent, rate(ours[percent])) for percent in STEPS],
                    "refused, with the agent": [
                        (percent, refused(ours[percent]) * CAPACITY * percent / 100) for percent in STEPS
                    ],
                },
                {"capacity": CAPACITY},
            ),
        ),
        table=(("load", "served per s", "refused", "p50", "p95", "p99", "p95 without the agent"), *rows),
    )
    over = [percent for percent in STEPS if percent >= 125]
    lowest = min(rate(ours[percent]) for percent in over)
    result.check(f"Above the capacity at least {lowest:.0f}/s are served", lowest >= 0.95 * CAPACITY)
    slowest = max(late(ours[percent], 0.99) for percent in STEPS)
    result.check(f"p99 is at most {slowest:.0f} ms: twice the target and one long call", slowest <= 320)
    parts = [refused(ours[percent]) for percent in STEPS]
    result.check(
        "The refused part never falls while the load grows",
        all(later >= before - 0.01 for before, later in pairwise(parts)),
    )
    result.check("Below the capacity nothing is refused", max(parts[:3]) <= 0.01)
    return result
