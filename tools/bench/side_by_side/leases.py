"""Leased decisions of a hot key: the cost of one here, and the work left for Redis."""

import asyncio
import random
import statistics
import time

from tools.bench.side_by_side import ours
from tools.bench.side_by_side.bars import Results, say
from tools.bench.side_by_side.figures import cpu_of

TENANT = ours.TENANTS[0]
#: Per pod, in steady Poisson traffic; the tenant is hot in a fleet of this many pods.
CALLS_PER_S = 1000
PODS = 10
ROUNDS = 3
ROUND_S = 3.0
#: Steady traffic has run for a while: between its rounds the tenant would cool down.
SETTLE_S = 3.0
IN_A_ROW = 2000


async def measure(url: str, redis_pid: int, results: Results) -> None:
    async with (
        ours.running(url, "leased", live_servers=PODS) as leased,
        # The same traffic with a limit that is never leased, not early either: every request asks Redis.
        ours.running(url, "asked", live_servers=PODS, requests=ours.ASKED_REQUESTS) as asked,
    ):
        await _warm_up(leased)
        results.ratios["lease_vs_monotonic"] = await _cost(leased)
        await _poisson(leased, asked, redis_pid, results)


async def _warm_up(pod: ours.Pod) -> None:
    deadline = time.monotonic() + 5
    while pod.admission.spend_by_name(TENANT) is None:
        if time.monotonic() > deadline:
            raise SystemExit("a hot tenant was not leased within 5 s")
        await pod.admission.admit_request(TENANT)


async def _cost(pod: ours.Pod) -> float:
    """CPU of one leased decision relative to one ``time.monotonic()``; the await is reported beside it."""
    leased, admit, monotonic = pod.admission.spend_by_name, pod.admission.admit_request, time.monotonic
    ratios, costs = [], []
    for _ in range(200):
        await asyncio.sleep(0.002)  # leases are renewed meanwhile
        await admit(TENANT)
        began = time.perf_counter_ns()
        spent = sum([leased(TENANT) is not None for _ in range(IN_A_ROW)])
        then = time.perf_counter_ns()
        sum([monotonic() is not None for _ in range(IN_A_ROW)])
        after = time.perf_counter_ns()
        if spent == IN_A_ROW:
            ratios.append((then - began) / (after - then))
            costs.append((then - began) / IN_A_ROW)
    if len(ratios) < 20:
        raise SystemExit("too few rounds were leased throughout")
    await _warm_up(pod)
    began = time.perf_counter_ns()
    for _ in range(IN_A_ROW):
        await admit(TENANT)
    awaited = (time.perf_counter_ns() - began) / IN_A_ROW
    say(f"a leased decision: {statistics.median(costs):.0f} ns, through admit_request {awaited:.0f} ns")
    return statistics.median(ratios)


async def _poisson(leased: ours.Pod, asked: ours.Pod, redis_pid: int, results: Results) -> None:
    idle = await _idle(redis_pid)
    cpu: dict[str, list[float]] = {"leased": [], "asked": []}
    commands: list[float] = []
    for _ in range(ROUNDS):
        for name, pod in (("leased", leased), ("asked", asked)):
            if name == "leased":
                await _arrivals(pod, SETTLE_S)
            answers = pod.counters.store_answers
            before = cpu_of(redis_pid)
            began = time.monotonic()
            calls = await _arrivals(pod, ROUND_S)
            spent = cpu_of(redis_pid) - before - idle * (time.monotonic() - began)
            cpu[name].append(spent * 1e6 / calls)
            if name == "leased":
                commands.append((pod.counters.store_answers - answers) / calls)
    if asked.admission.spend_by_name(TENANT) is not None:
        raise SystemExit("the pod that asks Redis each time has a lease")
    for name, found in cpu.items():
        say(f"{CALLS_PER_S} calls/s, {name}: {statistics.median(found):.2f} us of Redis CPU per decision")
    pairs = zip(cpu["leased"], cpu["asked"], strict=True)
    results.ratios["lease_redis_cpu_1k"] = statistics.median(one / other for one, other in pairs)
    results.ratios["lease_commands"] = statistics.median(commands)


async def _idle(redis_pid: int) -> float:
    """CPU seconds per second of an idle Redis."""
    before = cpu_of(redis_pid)
    await asyncio.sleep(1.0)
    return cpu_of(redis_pid) - before


async def _arrivals(pod: ours.Pod, seconds: float) -> int:
    """Calls at independent times, as users make them; their number."""
    arrivals = random.Random(7)
    tasks = []
    clock = time.monotonic
    at = began = clock()
    while at < began + seconds:
        at += arrivals.expovariate(CALLS_PER_S)
        if (pause := at - clock()) > 0:
            await asyncio.sleep(pause)
        tasks.append(asyncio.ensure_future(pod.admission.admit_request(TENANT)))
    await asyncio.gather(*tasks)
    return len(tasks)
