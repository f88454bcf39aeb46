"""T10, T20, and the storm: how often failed calls are made again."""

import asyncio
from contextlib import suppress
from typing import Any

from controlplane.gateway.servers.retry_caps import cap_milli
from fuseboard.calling.retry_budget import allowance
from fuseboard.contract.protection import Retry
from tests.agents.retry_storm import CAPS, DOWN_S, LOAD_FACTOR, PROCESSES, WARM_S, Storm
from tests.agents.retry_world import DOWN, World, now, play
from tools.experiments.chart import Chart
from tools.experiments.result import Result

#: Inputs of the table, from the first that applies to the last.
INPUTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("the breaker is open", 0, {"closed": False}),
    ("calls wait for 2.5 s", 0, {"mean_wait_s": 2.5}),
    ("95 % of the slots are used", 0, {"saturation": 0.95}),
    ("60 % of the calls fail", 1, {"error_rate": 0.6}),
    ("30 % of the calls fail", 2, {"error_rate": 0.3}),
    ("10 % of the calls fail", 3, {"error_rate": 0.1}),
)
QUIET: dict[str, Any] = {"closed": True, "mean_wait_s": 0.0, "saturation": 0.0, "error_rate": 0.0}


def _allowed(**inputs: Any) -> int:
    """The retries of a call at a quiet moment but for ``inputs``."""
    return allowance(**(QUIET | inputs))


def budget_table() -> Result:
    """T10."""
    found = [(text, wanted, _allowed(**inputs)) for text, wanted, inputs in INPUTS]
    rates = [percent / 100 for percent in range(101)]
    result = Result(
        key="T10",
        title="How many retries a call may make",
        traffic="One condition at a time: an open breaker, long waits, used slots, and shares of failures.",
        expected="0, 0, 0, 1, 2, 3 retries.",
        charts=(
            Chart(
                "Retries by share of failed calls",
                "% of the calls that fail",
                "retries",
                {"allowed": [(100 * rate, _allowed(error_rate=rate)) for rate in rates]},
            ),
        ),
        table=(("condition", "expected", "allowed"), *((text, str(a), str(b)) for text, a, b in found)),
    )
    result.check(
        f"The table is {', '.join(str(got) for _, _, got in found)}",
        all(want == got for _, want, got in found),
    )
    return result


def sustained_failures() -> Result:
    """T20: one pod whose vendor goes down and stays down."""
    per_s, up_s, down_s, deadline_s, takes_s = 10.0, 20.0, 60.0, 20.0, 0.05

    async def main() -> tuple[World, list[float]]:
        world = World(retry=Retry(idempotent=True), clock=now, warm=0, takes_s=takes_s)
        took: list[float] = []

        async def one() -> None:
            if now() >= up_s:
                world.script.extend([DOWN] * 5)
            began = now()
            try:
                await world.use(deadline_s=deadline_s)
            except ConnectionRefusedError:
                took.append(now() - began)

        tasks = []
        while now() < up_s + down_s:
            tasks.append(asyncio.ensure_future(one()))
            await asyncio.sleep(1 / per_s)
        await asyncio.gather(*tasks)
        return world, took

    slow_s, slow_deadline_s = 0.4, 0.6

    async def slow_attempts(within_s: float | None) -> tuple[float, list[int]]:
        """Calls of slow attempts, one after the other: the longest, and the attempts of each."""
        slow = World(retry=Retry(idempotent=True), clock=now, warm=1000, takes_s=slow_s)
        longest, attempts = 0.0, []
        for _ in range(20):
            slow.script = [DOWN] * 5
            began, before = now(), len(slow.sent)
            with suppress(ConnectionRefusedError, TimeoutError):
                await (slow.use() if within_s is None else slow.use(deadline_s=within_s))
            longest = max(longest, now() - began)
            attempts.append(len(slow.sent) - before)
        return longest, attempts

    world, took = play(main())
    bounded, bounded_attempts = play(slow_attempts(slow_deadline_s))
    unbounded, unbounded_attempts = play(slow_attempts(None))
    totals = world.retries.totals()["api"]
    down = [at for at in world.sent if at >= up_s]
    calls = per_s * down_s
    line = [
        (float(second), sum(second <= at < second + 1 for at in world.sent) / per_s)
        for second in range(int(up_s + down_s))
    ]
    ratio = len(down) / calls
    result = Result(
        key="T20",
        title="Sustained failures",
        traffic=f"One pod makes {per_s:.0f} calls per s. From {up_s:.0f} s on every attempt fails, for"
        f" {down_s:.0f} s. Up to 3 attempts, a deadline of {deadline_s:.0f} s.",
        expected="The budget is soon spent: most failed calls are not made again. No call has more than 3"
        " attempts or takes longer than its deadline.",
        charts=(
            Chart(
                "Attempts per call",
                "seconds",
                "attempts",
                {
                    "with the agent": line,
                    "every call thrice": [(0, 1), (up_s, 1), (up_s, 3), (up_s + down_s, 3)],
                },
                {"load factor": LOAD_FACTOR},
            ),
        ),
        table=(
            ("", "calls while down", "attempts", "attempts per call", "without a budget", "slowest call"),
            (
                "with the agent",
                f"{calls:.0f}",
                str(len(down)),
                f"{ratio:.2f}",
                str(totals.no_budget),
                f"{max(took):.2f} s",
            ),
            ("without", f"{calls:.0f}", f"{3 * calls:.0f}", "3.00", "-", "-"),
            (f"attempts of {slow_s} s, {slow_deadline_s} s in all", *_slow(bounded, bounded_attempts)),
            (f"attempts of {slow_s} s, no deadline", *_slow(unbounded, unbounded_attempts)),
        ),
    )
    result.check(f"While the vendor is down, {ratio:.2f} attempts are made per call", ratio <= LOAD_FACTOR)
    result.check(f"{totals.no_budget} calls find no budget", totals.no_budget > calls / 2)
    result.check(f"The slowest call takes {max(took):.2f} s", max(took) <= deadline_s)
    result.check(
        f"With slow attempts and a deadline of {slow_deadline_s} s, the slowest call takes {bounded:.2f} s",
        bounded <= slow_deadline_s + 1e-6,
    )
    result.check(f"Without a deadline it takes {unbounded:.2f} s", unbounded > 2 * slow_deadline_s)
    most = max(bounded_attempts + unbounded_attempts)
    result.check(f"No call has more than {most} attempts", most == 3)
    return result


def _slow(longest: float, attempts: list[int]) -> tuple[str, ...]:
    calls = len(attempts)
    return str(calls), str(sum(attempts)), f"{sum(attempts) / calls:.2f}", "-", f"{longest:.2f} s"


def retry_storm() -> Result:
    """Twenty processes whose vendor goes down at once."""
    rates = (0.2, 0.5, 1.0, 10.0)
    caps = {rate: cap_milli(rate * PROCESSES, PROCESSES, round(LOAD_FACTOR * 100)) for rate in rates}
    capped = {rate: Storm(rate, cap=cap).run() for rate, cap in caps.items()}
    local = {rate: Storm(rate).run() for rate in rates}
    naive = {rate: Storm(rate, cap=cap, naive=True).run() for rate, cap in caps.items()}

    def line(storm: Storm) -> list[tuple[float, float]]:
        points = []
        for second in range(int(WARM_S) - 10, int(WARM_S + DOWN_S)):
            some = [first for at, first in storm.attempts if second <= at < second + 1]
            points.append((second - WARM_S + 10, len(some) / sum(some) if sum(some) else 0.0))
        return points

    result = Result(
        key="T24",
        title="A retry storm",
        traffic=f"{PROCESSES} processes make 0.2, 0.5, 1 or 10 calls per s each; the vendor is down for"
        f" {DOWN_S:.0f} s. Up to 3 attempts.",
        expected="At most 1.2 attempts per call over the fleet, in every window of at least 100 calls."
        " Without the control plane, at most 10 retries per s more.",
        charts=(
            Chart(
                "Attempts per call of the fleet, at 10 calls per s and process",
                "seconds, the vendor is down from 10 on",
                "attempts",
                {"with the agent": line(capped[10.0]), "every call thrice": line(naive[10.0])},
                {"load factor": LOAD_FACTOR},
            ),
        ),
        table=(
            (
                "calls per s and process",
                "attempts per call",
                "in the worst 100 calls",
                "without the control plane",
                "every call thrice",
            ),
            *(
                (
                    f"{rate:g}",
                    f"{capped[rate].whole():.2f}",
                    f"{capped[rate].worst():.2f}",
                    f"{local[rate].whole():.2f}",
                    f"{naive[rate].whole():.2f}",
                )
                for rate in rates
            ),
        ),
    )
    result.check("The agent's tests use the caps of the control plane", caps == CAPS)
    worst = max(storm.worst() for storm in capped.values())
    result.check(f"In the worst window there are {worst:.3f} attempts per call", worst <= LOAD_FACTOR + 1e-9)
    more = max(_retries(storm) - (LOAD_FACTOR - 1) * _calls(storm) for storm in local.values())
    result.check(
        f"Without the control plane there are {max(0.0, more) / DOWN_S:.1f} more retries per s",
        more <= 10 * DOWN_S,
    )
    return result


def _calls(storm: Storm) -> int:
    return sum(first for at, first in storm.attempts if at >= WARM_S)


def _retries(storm: Storm) -> int:
    return sum(not first for at, first in storm.attempts if at >= WARM_S)
