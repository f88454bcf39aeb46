"""One round of one contender, as figures: CPU of both sides per decision, and the callers' waiting times."""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

Call = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one round; times in microseconds."""

    decisions: int
    #: CPU of this process per decision.
    cpu: float
    #: CPU of the Redis process per decision, system calls included.
    redis_cpu: float
    p50: float
    p99: float
    #: Decisions per second of wall time, which depends on the other load of the machine.
    per_s: float


def cpu_of(pid: int) -> float:
    """CPU seconds of the main thread of a process; of the whole process where Linux has no figure."""
    schedstat = Path(f"/proc/{pid}/schedstat")
    if schedstat.exists():
        return int(schedstat.read_text().split()[0]) / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def cpu_of_all_threads(pid: int) -> float:
    """CPU seconds of a process with all its threads."""
    tasks = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if tasks:
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def closed_loop(call: Call, *, callers: int, seconds: float, redis_pid: int) -> Figures:
    """``callers`` that ask again as soon as they are answered, for ``seconds``."""
    waits: list[list[int]] = [[] for _ in range(callers)]
    clock = time.perf_counter_ns

    async def ask(number: int) -> None:
        note = waits[number].append
        began = clock()
        # By the clock and not by a flag: an answer from memory lets no other task run.
        while began < ends:
            await call(number)
            note(clock() - began)
            began = clock()

    gc.collect()
    ends = clock() + int(seconds * 1e9)
    began, cpu, redis_cpu = time.perf_counter(), time.process_time(), cpu_of(redis_pid)
    tasks = [asyncio.ensure_future(ask(number)) for number in range(callers)]
    await asyncio.gather(*tasks)
    redis_cpu = cpu_of(redis_pid) - redis_cpu
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    every = sorted(wait for of_one in waits for wait in of_one)
    return Figures(
        decisions=len(every),
        cpu=cpu * 1e6 / len(every),
        redis_cpu=redis_cpu * 1e6 / len(every),
        p50=every[len(every) // 2] / 1e3,
        p99=every[min(len(every) - 1, len(every) * 99 // 100)] / 1e3,
        per_s=len(every) / wall,
    )


class Rounds:
    """The figures of every contender, round by round."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], list[Figures]] = {}

    def add(self, name: str, callers: int, figures: Figures) -> None:
        self._of.setdefault((name, callers), []).append(figures)

    def median(self, name: str, callers: int, field: str) -> float:
        return statistics.median(getattr(figures, field) for figures in self._of[name, callers])

    def ratio(self, name: str, rival: str, callers: int, field: str) -> float:
        """Ratio of ``name`` to ``rival``: the median over the rounds of both figures of one round."""
        pairs = zip(self._of[name, callers], self._of[rival, callers], strict=True)
        return statistics.median(getattr(one, field) / getattr(other, field) for one, other in pairs)

    def table(self) -> list[str]:
        heads = ("callers", "CPU us", "Redis us", "p50 us", "p99 us", "per s")
        lines = [f"{'contender':<22}" + "".join(f"{head:>10}" for head in heads)]
        for name, callers in sorted(self._of, key=lambda key: -key[1]):
            figures = [
                self.median(name, callers, field) for field in ("cpu", "redis_cpu", "p50", "p99", "per_s")
            ]
            cpu, redis_cpu, p50, p99, per_s = figures
            lines.append(
                f"{name:<22}{callers:>10}{cpu:>10.2f}{redis_cpu:>10.2f}{p50:>10.0f}{p99:>10.0f}{per_s:>10,.0f}"
            )
        return lines
