"""A call with every local part of the protection, beside a bare semaphore.

The first step of shedding, bulkhead, local rate, leased admission and report; the semaphore has two readings
of the clock, for the latency.
"""

import asyncio
import statistics
import time

from fuseboard.contract.words import Outcome
from tests.bench.side_by_side import ours
from tests.bench.side_by_side.bars import Results, say

#: The dependency is hot in a fleet of this many pods, so that its calls are leased.
PODS = 10
ROUNDS = 150
IN_A_ROW = 400
WARM_UP_S = 8.0


async def measure(url: str, redis_pid: int, results: Results) -> None:
    async with ours.running(url, "guarded", live_servers=PODS) as pod:
        for name in (ours.GUARDED, ours.UNGUARDED):
            await _warm_up(pod, name)
        calls = {
            "a bare semaphore": _semaphore(),
            "no protection": _ours(pod, ours.UNGUARDED),
            "all parts": _ours(pod, ours.GUARDED),
        }
        costs: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                await asyncio.sleep(0.001)  # leases are renewed meanwhile
                began = time.perf_counter_ns()
                for _ in range(IN_A_ROW):
                    await call()
                costs[name].append((time.perf_counter_ns() - began) / IN_A_ROW)
    for name, found in costs.items():
        say(f"one guarded call, {name}: {statistics.median(found):,.0f} ns")
    results.ratios["guarded_vs_semaphore"] = _ratio(costs["all parts"], costs["a bare semaphore"])


def _ratio(ours_ns: list[float], theirs_ns: list[float]) -> float:
    return statistics.median(own / other for own, other in zip(ours_ns, theirs_ns, strict=True))


async def _warm_up(pod: ours.Pod, dependency: str) -> None:
    """Until its calls are leased."""
    until = time.monotonic() + WARM_UP_S
    while time.monotonic() < until:
        permit = await pod.admission.admit_call(dependency)
        pod.admission.report(permit, Outcome.OK)
        if permit.decision.leased:
            return
    raise SystemExit(f"calls to {dependency} were not leased within {WARM_UP_S:g} s")


def _ours(pod: ours.Pod, dependency: str):
    admit, report, ok = pod.admission.admit_call, pod.admission.report, Outcome.OK
    pod.admission.guarded.shed = lambda guard, tier: None

    async def call() -> None:
        report(await admit(dependency), ok)

    return call


def _semaphore():
    semaphore, clock = asyncio.Semaphore(ours.SLOTS), time.monotonic

    async def call() -> None:
        async with semaphore:
            began = clock()
            clock() - began

    return call
