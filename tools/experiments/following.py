"""T28: a vendor that halves its limit, and later gives more, with answers that say nothing."""

import heapq
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import redis
from msgspec.structs import replace

from controlplane.embedded.valkey import Valkey
from fuseboard.calling.failures import ROOM_AGAIN_MS
from fuseboard.contract.policy import Limit
from tests.agents.models.learner import Learner
from tests.agents.models.learning_oracle import TICK_US
from tests.agents.scripts import Store
from tools.experiments.chart import Chart
from tools.experiments.result import Result, share

PODS, OFFERED_PER_S, ANSWER_S, OTHERS = 20, 12.0, 2.0, 0.2
SECONDS, HALVED_S, MORE_S = 2_700.0, 900.0, 1_800.0
LIMIT = Limit(name="per-minute", limit=600, window_ms=60_000, burst=10)
FLOOR_PERCENT = 10
#: Calls that the vendor can make up for after a pause, in seconds of its rate.
BURST_S = 6.0


def allowed_per_s(at: float) -> float:
    """600 a minute, 300, and then 500."""
    return (600 if at < HALVED_S else 300 if at < MORE_S else 500) / 60


@dataclass
class Vendor:
    level: float = 60.0
    at: float = 0.0

    def serves(self, at: float) -> bool:
        per_s = allowed_per_s(at)
        self.level, self.at = min(per_s * BURST_S, self.level + (at - self.at) * per_s), at
        good = self.level >= 1
        self.level -= good
        return good


@dataclass
class Fleet:
    """Pods that share the counter of the real scripts. ``learner``: they follow the vendor."""

    store: Store
    learner: Learner | None
    asked: Counter[int] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    paused_until: float = 0.0

    def __post_init__(self) -> None:
        self.began_us = self.store.now_us

    def wants(self, pod: int, at: float) -> bool:
        self.asked[pod] += 1
        self.store.now_us = self.began_us + int(at * 1_000_000)
        return at >= self.paused_until and self.store.admit().granted == 1

    def answered(self, pod: int, at: float, *, good: bool) -> None:
        self.sent[pod] += 1
        self.refused[pod] += not good
        if not good:
            self.paused_until = max(self.paused_until, at + ROOM_AGAIN_MS / 1000)

    def report(self, pod: int, at: float) -> None:
        if self.learner is None:
            return
        self.learner.now_us = self.began_us + int(at * 1_000_000)
        counts = (self.asked.pop(pod, 0), self.sent.pop(pod, 0), self.refused.pop(pod, 0))
        number = self.learner.report(f"pod-{pod}", *counts).limit
        self.store.limits = [replace(LIMIT, limit=number, burst=max(1, LIMIT.burst * number // LIMIT.limit))]

    @property
    def limit(self) -> int:
        return self.store.limits[0].limit


@dataclass
class Found:
    ok: int = 0
    refused: int = 0
    after_halving: int = 0
    line: list[tuple[float, float]] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        left = sum(min(OFFERED_PER_S, (1 - OTHERS) * allowed_per_s(second)) for second in range(int(SECONDS)))
        return self.ok / left


def play(fleet: Fleet, seed: int = 1) -> Found:
    draw, number, vendor, found = Random(seed), count(), Vendor(), Found()
    events: list[Any] = []

    def at(moment: float, what: str, *more: Any) -> None:
        heapq.heappush(events, (moment, next(number), what, *more))

    at(draw.expovariate(OFFERED_PER_S), "call")
    at(draw.expovariate(1), "other")
    for pod in range(PODS):
        at(draw.uniform(0, TICK_US / 1e6), "report", pod)
    while events:
        now, _, what, *more = heapq.heappop(events)
        if now > SECONDS:
            break
        if what == "call":
            at(now + draw.expovariate(OFFERED_PER_S), "call")
            pod = draw.randrange(PODS)
            if fleet.wants(pod, now):
                good = vendor.serves(now)
                at(now + (ANSWER_S * draw.uniform(0.5, 1.5) if good else 0.05), "answer", pod, good)
        elif what == "answer":
            pod, good = more
            fleet.answered(pod, now, good=good)
            found.ok, found.refused = found.ok + good, found.refused + (not good)
            found.after_halving += not good and HALVED_S <= now < HALVED_S + 120
        elif what == "other":
            at(now + draw.expovariate(OTHERS * allowed_per_s(now)), "other")
            vendor.serves(now)
        else:
            at(now + TICK_US / 1e6 * draw.uniform(0.8, 1.2), "report", *more)
            fleet.report(more[0], now)
            if more[0] == 0:
                found.line.append((now, fleet.limit))
    return found


def following() -> Result:
    """T28."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            client = redis.Redis.from_url(server.url)
            client.flushall()
            usual = play(Fleet(Store(client, [LIMIT]), None))
            client.flushall()
            lowest = LIMIT.limit * FLOOR_PERCENT // 100
            learner = Learner(client, ceiling=LIMIT.limit, lowest=lowest)
            followed = play(Fleet(Store(client, [LIMIT]), learner))
            client.close()
        finally:
            server.stop()
    rows = [("", "429s", "429s in the 2 min after the halving", "used of what the others leave")]
    for name, one in (("the configured limit", usual), ("a limit that follows", followed)):
        requests = one.ok + one.refused
        rows.append(
            (name, share(one.refused, requests), str(one.after_halving), f"{100 * one.goodput:.0f} %")
        )
    result = Result(
        key="T28",
        title="Following a vendor",
        traffic=f"{PODS} pods make {OFFERED_PER_S:.0f} calls per s. The limit is {LIMIT.limit} a minute."
        f" The vendor allows 600, from {HALVED_S:.0f} s on 300, and from {MORE_S:.0f} s on 500. Others use"
        " 20 % of the key. Its answers say nothing of its limits, and its 429s name no time. The scripts are"
        " the real ones.",
        expected="At most 3 % of the calls are refused, fewer than half of those with the configured limit"
        " alone, and at least 90 % of what the others leave is used.",
        charts=(
            Chart(
                "The limit that applies",
                "seconds",
                "calls per minute",
                {
                    "followed": followed.line,
                    "for us": [(x, 48 * allowed_per_s(x)) for x in range(0, int(SECONDS), 10)],
                },
                {"configured": LIMIT.limit},
            ),
        ),
        table=tuple(rows),
    )
    requests = followed.ok + followed.refused
    result.check(
        f"{share(followed.refused, requests)} of the calls are refused, instead of"
        f" {share(usual.refused, usual.ok + usual.refused)}",
        followed.refused <= min(0.03 * requests, usual.refused / 2),
    )
    result.check(f"{100 * followed.goodput:.0f} % of what the others leave is used", followed.goodput >= 0.9)
    return result
