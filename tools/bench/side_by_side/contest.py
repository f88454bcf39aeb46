"""The whole run: every part, with a separate Valkey."""

import asyncio
import logging
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from controlplane.embedded.valkey import Valkey
from tools.bench.side_by_side import deadline, guarded, leases, one_core, ours, peers, served
from tools.bench.side_by_side.bars import Results, say
from tools.bench.side_by_side.figures import Call, Rounds, closed_loop

#: Rounds by number of callers, and seconds each contender has in one. One caller gives the least data per
#: round.
ROUNDS = {200: 9, 50: 9, 1: 12}
ROUND_S = 0.2
WARM_UP_S = 0.1


def main() -> int:
    logging.disable(logging.WARNING)
    began = time.monotonic()
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder))
        valkey.start()
        try:
            assert valkey.process is not None
            _keep_apart(valkey.process.pid)
            asyncio.run(_measure(valkey.url, valkey.process.pid, results))
        finally:
            valkey.stop()
    say(f"\n{time.monotonic() - began:.0f} s in all")
    return results.report()


def _keep_apart(redis_pid: int) -> None:
    """One processor for the callers and one for Redis, where the system allows it."""
    if hasattr(os, "sched_setaffinity") and len(allowed := sorted(os.sched_getaffinity(0))) > 1:
        os.sched_setaffinity(redis_pid, {allowed[1]})
        os.sched_setaffinity(0, {allowed[0]})


async def _measure(url: str, redis_pid: int, results: Results) -> None:
    rounds = await _decisions(url, redis_pid)
    for line in rounds.table():
        say(line)
    _compare(rounds, results)
    for part in (one_core, deadline, served, leases, guarded):
        say()
        await part.measure(url, redis_pid, results)


async def _decisions(url: str, redis_pid: int) -> Rounds:
    rounds = Rounds()
    async with AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(ours.running(url, f"pod-{n}")) for n in range(3)]
        contenders: dict[str, Call] = {
            "ours": pods[0].call(20),
            "ours, reported": pods[1].reported_call(20),
            "ours, 200 tenants": pods[2].call(200),
            "limits": await peers.limits_moving(url),
            "throttled-py": await peers.throttled_gcra(url),
            "pyrate-limiter": await peers.pyrate(url),
            "stack": await peers.stack(url),
            "bare EVALSHA": await peers.bare_script(pods[0].store),
        }
        for callers, times in ROUNDS.items():
            for number in range(-1, times):
                for name, call in contenders.items():
                    seconds = WARM_UP_S if number < 0 else ROUND_S
                    figures = await closed_loop(call, callers=callers, seconds=seconds, redis_pid=redis_pid)
                    if number >= 0:
                        rounds.add(name, callers, figures)
    return rounds


def _compare(rounds: Rounds, results: Results) -> None:
    found, ratio = results.ratios, rounds.ratio
    for callers in (200, 50):
        # A limit of a library has no outcomes. A breaker does: against the stack, ours reports.
        found[f"decisions_vs_limits_{callers}"] = 1 / ratio("ours", "limits", callers, "cpu")
        found[f"decisions_vs_stack_{callers}"] = 1 / ratio("ours, reported", "stack", callers, "cpu")
    found["decisions_vs_limits_1"] = ratio("ours", "limits", 1, "cpu")
    found["p99_vs_limits_200"] = ratio("ours", "limits", 200, "p99")
    found["p99_vs_evalsha_200"] = ratio("ours", "bare EVALSHA", 200, "p99")
    found["p50_vs_limits_1"] = ratio("ours", "limits", 1, "p50")
    found["p50_vs_stack_1"] = ratio("ours, reported", "stack", 1, "p50")
    found["p50_vs_evalsha_1"] = ratio("ours", "bare EVALSHA", 1, "p50")
    for callers in (200, 1):
        found[f"redis_cpu_vs_limits_{callers}"] = ratio("ours", "limits", callers, "redis_cpu")
        found[f"redis_cpu_vs_stack_{callers}"] = ratio("ours, reported", "stack", callers, "redis_cpu")
    for rival in ("limits", "stack"):
        found[f"redis_cpu_200_tenants_vs_{rival}"] = ratio("ours, 200 tenants", rival, 200, "redis_cpu")
