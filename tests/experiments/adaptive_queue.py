"""T1: a queue that bounds how long calls wait, while load and service time change."""

from collections.abc import Callable

from fuseboard.contract.words import WhenFull
from fuseboard.protection.bulkhead import Bulkhead
from tests.experiments.chart import Chart
from tests.experiments.result import Result, ms, quantile, share
from tests.experiments.traffic import (
    Call,
    Serve,
    Vendor,
    arrive,
    line,
    one_tier,
    waits,
    with_bulkhead,
    without_agent,
)
from tests.virtual_loop import run_virtually

SLOTS, SERVICE_S, TARGET_S = 10, 0.020, 0.100
CAPACITY = SLOTS / SERVICE_S
RISE_S, STAY_S = 60.0, 30.0


def rate(at: float) -> float:
    """From 10 to 150 percent of the capacity, then steady."""
    return CAPACITY * (0.1 + 1.4 * min(1.0, at / RISE_S))


def adaptive_queue() -> Result:
    sizes: list[tuple[float, float]] = []

    async def play(serving: Callable[[Vendor], Serve]) -> list[Call]:
        return await arrive(rate, RISE_S + STAY_S, serving(Vendor(SERVICE_S, seed=2)), seed=1, drain_s=30)

    async def protected() -> list[Call]:
        settings = one_tier(
            SLOTS,
            adaptive=True,
            target_wait_ms=int(TARGET_S * 1000),
            when_full=(WhenFull.QUEUE, WhenFull.ABORT, WhenFull.DISCARD),
        )
        bulkhead = Bulkhead(settings, name="vendor", expected_s=SERVICE_S)

        def serving(vendor: Vendor) -> Serve:
            inner = with_bulkhead(bulkhead, vendor)

            async def serve(call: Call) -> None:
                if not sizes or call.at - sizes[-1][0] >= 1:
                    sizes.append((call.at, bulkhead.tiers[0].queue_limit))
                await inner(call)

            return serve

        return await play(serving)

    async def unprotected() -> list[Call]:
        return await play(lambda vendor: without_agent(SLOTS, vendor))

    ours, theirs = run_virtually(protected()), run_virtually(unprotected())
    steady = [call for call in ours if call.at >= RISE_S]
    alone = [call for call in theirs if call.at >= RISE_S]
    refused = [call for call in steady if not call.served]
    served_per_s = (len(steady) - len(refused)) / STAY_S
    late_sizes = [size for at, size in sizes if at >= RISE_S]
    result = Result(
        key="T1",
        title="An adaptive queue bounds waits",
        traffic=f"{SLOTS} slots, calls of 20 ms on average; load rises from 10 to 150 % of {CAPACITY:.0f}/s"
        f" in {RISE_S:.0f} s and stays for {STAY_S:.0f} s. The target wait is 100 ms.",
        expected="Waits of admitted calls stay at most twice the target, the excess is refused, throughput"
        " stays at the capacity, and the size of the queue converges.",
        charts=(
            Chart(
                "p95 of the wait for a slot",
                "seconds",
                "ms",
                {
                    "with the agent": line(ours, lambda some: _ms(waits(some, 0.95))),
                    "without": line(theirs, lambda some: _ms(waits(some, 0.95))),
                },
                {"twice the target": 2000 * TARGET_S},
                most=1000,
            ),
            Chart("The size of the queue", "seconds", "calls", {"size": sizes}),
        ),
        table=(
            ("in the last 30 s", "refused", "served per s", "wait p50", "p95", "max"),
            ("with the agent", share(len(refused), len(steady)), f"{served_per_s:.0f}", *_waits(steady)),
            (
                "without",
                "0.0 %",
                f"{sum(c.ended <= RISE_S + STAY_S for c in alone) / STAY_S:.0f}",
                *_waits(alone),
            ),
        ),
    )
    longest = max(call.wait_s for call in ours if call.served)
    result.check(
        f"The longest wait, {ms(longest)}, is at most twice the target", longest <= 2 * TARGET_S + 1e-6
    )
    part = len(refused) / len(steady)
    result.check(
        f"At 150 % of the capacity {100 * part:.0f} % are refused, about a third", 0.28 <= part <= 0.40
    )
    result.check(f"Throughput is {served_per_s:.0f}/s of {CAPACITY:.0f}", served_per_s >= 0.95 * CAPACITY)
    result.check(
        f"The size stays between {min(late_sizes):.0f} and {max(late_sizes):.0f}",
        max(late_sizes) <= 1.5 * min(late_sizes),
    )
    return result


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _waits(calls: list[Call]) -> tuple[str, str, str]:
    served = [call.wait_s for call in calls if call.served]
    return ms(quantile(served, 0.5)), ms(quantile(served, 0.95)), ms(max(served))
