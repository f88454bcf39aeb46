"""T1: a queue that bounds how long calls wait, while load and service time change."""

import asyncio
from collections.abc import Callable

from fuseboard.contract.words import WhenFull
from fuseboard.protection.bulkhead import Bulkhead
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.result import Result, ms, quantile, share
from tools.experiments.traffic import (
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

SLOTS, SERVICE_S, TARGET_S = 10, 0.020, 0.100
CAPACITY = SLOTS / SERVICE_S
RISE_S, STAY_S = 60.0, 30.0
#: Then each call takes three times as long, and afterwards as long as before.
SLOWER, SLOW_S, BACK_S = 3.0, 20.0, 15.0
#: How long the size may take to follow.
ADAPTS_S = 6.0
#: Places that suit the usual speed: what a person would configure.
FIXED = 48


def rate(at: float) -> float:
    """From 10 to 150 percent of the capacity, then steady."""
    return CAPACITY * (0.1 + 1.4 * min(1.0, at / RISE_S))


def adaptive_queue() -> Result:
    sizes: list[tuple[float, float]] = []
    slow_at = RISE_S + STAY_S
    ends = slow_at + SLOW_S + BACK_S

    async def play(serving: Callable[[Vendor], Serve]) -> list[Call]:
        loop, vendor = asyncio.get_running_loop(), Vendor(SERVICE_S, seed=2)
        loop.call_later(slow_at, setattr, vendor, "slowdown", SLOWER)
        loop.call_later(slow_at + SLOW_S, setattr, vendor, "slowdown", 1.0)
        return await arrive(rate, ends, serving(vendor), seed=1, drain_s=30)

    async def protected(*, adaptive: bool) -> list[Call]:
        settings = one_tier(
            SLOTS,
            adaptive=adaptive,
            queues=(FIXED, 0, 0),
            target_wait_ms=int(TARGET_S * 1000),
            when_full=(WhenFull.QUEUE, WhenFull.ABORT, WhenFull.DISCARD),
        )
        bulkhead = Bulkhead(settings, name="vendor", expected_s=SERVICE_S)

        def serving(vendor: Vendor) -> Serve:
            inner = with_bulkhead(bulkhead, vendor)

            async def serve(call: Call) -> None:
                if adaptive and (not sizes or call.at - sizes[-1][0] >= 1):
                    sizes.append((call.at, bulkhead.tiers[0].queue_limit))
                await inner(call)

            return serve

        return await play(serving)

    async def unprotected() -> list[Call]:
        return await play(lambda vendor: without_agent(SLOTS, vendor))

    everything, theirs = run_virtually(protected(adaptive=True)), run_virtually(unprotected())
    fixed = run_virtually(protected(adaptive=False))
    ours = [call for call in everything if call.at < slow_at]
    steady = [call for call in ours if call.at >= RISE_S]
    alone = [call for call in theirs if RISE_S <= call.at < slow_at]
    slowed = (slow_at + ADAPTS_S, slow_at + SLOW_S)
    back = (slow_at + SLOW_S + ADAPTS_S, ends)
    refused = [call for call in steady if not call.served]
    served_per_s = (len(steady) - len(refused)) / STAY_S
    late_sizes = [size for at, size in sizes if RISE_S <= at < slow_at]
    slow_sizes, back_sizes = ([size for at, size in sizes if a <= at < b] for a, b in (slowed, back))
    result = Result(
        key="T1",
        title="An adaptive queue bounds waits",
        traffic=f"{SLOTS} slots, calls of 20 ms on average; load rises from 10 to 150 % of {CAPACITY:.0f}/s"
        f" in {RISE_S:.0f} s and stays. After {slow_at:.0f} s, calls take {SLOWER:.0f} times as long for"
        f" {SLOW_S:.0f} s. The target wait is 100 ms.",
        expected="Waits of admitted calls stay at most twice the target, the excess is refused, throughput"
        " stays at the capacity, and the size of the queue converges. It follows the vendor's speed within"
        f" {ADAPTS_S:.0f} s, both ways; with a queue of fixed length, calls wait longer.",
        charts=(
            Chart(
                "p95 of the wait for a slot",
                "seconds",
                "ms",
                {
                    "with the agent": line(everything, lambda some: _ms(waits(some, 0.95))),
                    f"{FIXED} fixed places": line(fixed, lambda some: _ms(waits(some, 0.95))),
                    "without": line(theirs, lambda some: _ms(waits(some, 0.95))),
                },
                {"twice the target": 2000 * TARGET_S},
                most=1000,
            ),
            Chart("The size of the queue", "seconds", "calls", {"size": sizes}),
        ),
        table=(
            (f"at {RISE_S:.0f} to {slow_at:.0f} s", "refused", "served per s", "wait p50", "p95", "max"),
            ("with the agent", share(len(refused), len(steady)), f"{served_per_s:.0f}", *_waits(steady)),
            (
                "without",
                "0.0 %",
                f"{sum(c.ended <= slow_at for c in alone) / STAY_S:.0f}",
                *_waits(alone),
            ),
            ("while slow, with the agent", *_part(everything, slowed)),
            (f"while slow, {FIXED} fixed places", *_part(fixed, slowed)),
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
    ours_p95, fixed_p95 = (_p95(some, slowed) for some in (everything, fixed))
    result.check(
        f"While calls take {SLOWER:.0f} times as long, p95 of the wait is {ms(ours_p95)}",
        ours_p95 <= 2 * TARGET_S,
    )
    result.check(
        f"With {FIXED} fixed places it is {ms(fixed_p95)}, more than twice the target",
        fixed_p95 > 2 * TARGET_S,
    )
    usual = sum(late_sizes) / len(late_sizes)
    slow, again = sum(slow_sizes) / len(slow_sizes), sum(back_sizes) / len(back_sizes)
    result.check(
        f"The size follows: {usual:.0f} places, then {slow:.0f}, then {again:.0f}",
        slow <= 1.3 * usual / SLOWER and abs(again - usual) <= 0.3 * usual,
    )
    return result


def _p95(calls: list[Call], span: tuple[float, float]) -> float:
    return waits((call for call in calls if span[0] <= call.at < span[1]), 0.95) or 0.0


def _part(calls: list[Call], span: tuple[float, float]) -> tuple[str, ...]:
    some = [call for call in calls if span[0] <= call.at < span[1]]
    served = [call for call in some if call.served]
    per_s = len(served) / (span[1] - span[0])
    return share(len(some) - len(served), len(some)), f"{per_s:.0f}", *_waits(some)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _waits(calls: list[Call]) -> tuple[str, str, str]:
    served = [call.wait_s for call in calls if call.served]
    return ms(quantile(served, 0.5)), ms(quantile(served, 0.95)), ms(max(served))
