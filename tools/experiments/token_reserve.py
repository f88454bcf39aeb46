"""T29: what a call reserves before anybody knows how long its answer is."""

import heapq
import math
import tempfile
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, count
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from fuseboard.llm.estimate import Learned, stepped
from fuseboard.llm.usage import Usage
from tests.agents.scripts import Store
from tools.experiments.chart import Chart
from tools.experiments.result import Result, share

PODS, PER_MINUTE, MAX_TOKENS, MEAN, SPREAD = 20, 300_000, 4_096, 400, 0.9
#: A model starts to answer, and then writes so many tokens per second.
FIRST_S, TOKENS_PER_S = 1.0, 60.0
SECONDS, STEADY_PER_S, BURST, EVERY_S = 600.0, 25.0, 3_000, 120
LIMIT = Limit(
    name="output",
    limit=PER_MINUTE,
    window_ms=60_000,
    algorithm=Algorithm.SLIDING_WINDOW,
    measure="output_tokens",
)
SEEDS = range(1, 6)
STEADY, BURSTS = "steady", "3,000 at once"

#: What a pod reserves, by what it has learned.
Reserve = Callable[[Learned], int]
RESERVES: dict[str, Reserve] = {
    "nothing; charged afterwards": lambda _: 1,
    "max_tokens": lambda _: MAX_TOKENS,
    "what is learned": lambda learned: stepped(0, learned.next_output(MAX_TOKENS)),
}
OURS = "what is learned"


@dataclass
class Found:
    refused: int = 0
    most_in_flight: int = 0
    #: (second, tokens) of each answer, as the vendor counts.
    counted: list[tuple[float, int]] = field(default_factory=list)

    @property
    def used(self) -> float:
        return sum(tokens for _, tokens in self.counted) / (PER_MINUTE / 60 * SECONDS)

    def minutes(self) -> list[tuple[float, float]]:
        """(second, part of the limit in the 60 s before it), at each answer."""
        times = [at for at, _ in self.counted]
        sums = [0, *accumulate(tokens for _, tokens in self.counted)]
        return [
            (at, (sums[place + 1] - sums[bisect(times, at - 60)]) / PER_MINUTE)
            for place, at in enumerate(times)
        ]

    @property
    def worst(self) -> float:
        return max(part for _, part in self.minutes())


def _moments(draw: Random, pattern: str) -> list[float]:
    if pattern == BURSTS:
        starts = range(0, int(SECONDS), EVERY_S)
        return sorted(start + draw.random() for start in starts for _ in range(BURST))
    moments, at = [], 0.0
    while (at := at + draw.expovariate(STEADY_PER_S)) < SECONDS:
        moments.append(at)
    return moments


def play(store: Store, reserve: Reserve, pattern: str, seed: int) -> Found:
    draw, number, found = Random(seed), count(), Found()
    learned: defaultdict[int, Learned] = defaultdict(Learned)
    began_us, in_flight = store.now_us, 0
    events: list[Any] = [(at, next(number), "call") for at in _moments(draw, pattern)]
    heapq.heapify(events)
    while events and events[0][0] < SECONDS:
        now, _, what, *more = heapq.heappop(events)
        store.now_us = began_us + int(now * 1_000_000)
        if what == "call":
            pod = draw.randrange(PODS)
            reserved = reserve(learned[pod])
            if store.admit((1, reserved)).granted == 0:
                found.refused += 1
                continue
            in_flight += 1
            found.most_in_flight = max(found.most_in_flight, in_flight)
            drawn = draw.lognormvariate(math.log(MEAN) - SPREAD**2 / 2, SPREAD)
            tokens = min(MAX_TOKENS, max(1, int(drawn)))
            ends = now + FIRST_S + tokens / TOKENS_PER_S
            heapq.heappush(events, (ends, next(number), "end", pod, store.now_us, reserved, tokens))
        else:
            pod, asked_us, reserved, tokens = more
            in_flight -= 1
            store.settle(amount=tokens - reserved, at=asked_us)
            learned[pod].add(0, 0, Usage(output=tokens))
            found.counted.append((now, tokens))
    return found


def token_reserve() -> Result:
    """T29."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            client = redis.Redis.from_url(server.url)
            found = {
                (name, pattern): [
                    _play(client, reserve, pattern, seed) for seed in (SEEDS if name == OURS else SEEDS[:1])
                ]
                for name, reserve in RESERVES.items()
                for pattern in (STEADY, BURSTS)
            }
            client.close()
        finally:
            server.stop()
    rows = [("reserved", "traffic", "used of the limit", "worst minute", "at once")]
    rows += [(name, pattern, *_figures(runs)) for (name, pattern), runs in found.items()]
    result = Result(
        key="T29",
        title="Reserving tokens",
        traffic=f"{PODS} pods share {PER_MINUTE:,} output tokens a minute. Answers have {MEAN} tokens on"
        f" average (lognormal, {SPREAD}) and at most {MAX_TOKENS:,}; a model writes {TOKENS_PER_S:.0f} per s."
        f" Steady: {STEADY_PER_S:.0f} calls per s, twice what fits. Or {BURST:,} calls in one second, every"
        f" {EVERY_S} s. Each pod learns alone. The counters are the real scripts. What is learned is a median"
        f" of {len(SEEDS)} seeds.",
        expected="What a pod learns uses at least 80 % of the limit in steady traffic, and no minute of the"
        " vendor has more than 105 %, in the median of the seeds, and never more than 115 %.",
        charts=(
            Chart(
                "Tokens of the last minute, steady",
                "seconds",
                "% of the limit",
                {
                    name: [(at, 100 * part) for at, part in found[name, STEADY][0].minutes()[::100]]
                    for name in RESERVES
                },
                {"limit": 100},
            ),
        ),
        table=tuple(rows),
    )
    steady = found[OURS, STEADY]
    used, worst = median(one.used for one in steady), [one.worst for one in steady]
    result.check(f"{share(used, 1)} of the limit is used", used >= 0.8)
    result.check(
        f"The worst minute has {share(median(worst), 1)}, at most {share(max(worst), 1)}",
        median(worst) <= 1.05 and max(worst) <= 1.15,
    )
    bursts = max(one.worst for one in found[OURS, BURSTS])
    result.check(f"{BURST:,} calls at once use at most {share(bursts, 1)} in a minute", bursts <= 1.05)
    return result


def _play(client: redis.Redis, reserve: Reserve, pattern: str, seed: int) -> Found:
    client.flushall()
    return play(Store(client, [LIMIT]), reserve, pattern, seed)


def _figures(runs: list[Found]) -> tuple[str, str, str]:
    return (
        share(median(one.used for one in runs), 1),
        share(median(one.worst for one in runs), 1),
        f"{median(one.most_in_flight for one in runs):,.0f}",
    )
