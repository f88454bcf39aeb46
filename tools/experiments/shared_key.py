"""T27: other programs use the same key of a vendor. What it has left is charged in our own counter."""

import heapq
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.batching.settlements import LEFT_WAIT_S
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from fuseboard.learning.headers import stated_limits
from fuseboard.learning.remaining import left_of
from tests.agents.scripts import Store
from tools.experiments.chart import Chart
from tools.experiments.result import Result, share

PODS, PER_MINUTE, OFFERED_PER_S, ANSWER_S, REFUSAL_S = 20, 600, 12.0, 2.0, 0.05
SECONDS, MORE_FROM_S = 420.0, 210.0
LIMIT = Limit(name="per-minute", limit=PER_MINUTE, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)


def others_per_s(at: float) -> float:
    """20 % of the limit, then 40 %."""
    return (0.2 if at < MORE_FROM_S else 0.4) * PER_MINUTE / 60


class Bucket:
    """Refills all the time, and sends the headers of OpenAI."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.level, self.at, self.stuck = float(PER_MINUTE), 0.0, stuck

    def ask(self, at: float) -> tuple[bool, dict[str, str], float]:
        """Whether it serves the call, its headers, and ``Retry-After``."""
        per_s = PER_MINUTE / 60
        self.level, self.at = min(PER_MINUTE, self.level + (at - self.at) * per_s), at
        good = self.level >= 1
        self.level -= good
        left = 0 if self.stuck else int(self.level)
        headers = {
            "x-ratelimit-limit-requests": str(PER_MINUTE),
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": f"{(PER_MINUTE - left) / per_s * 1000:.0f}ms",
        }
        return good, headers, 0.0 if good else (1 - self.level) / per_s


class FixedMinute:
    """Counts the calls of each minute, and sends the headers of the IETF."""

    def __init__(self) -> None:
        self.minute, self.used = -1, 0

    def ask(self, at: float) -> tuple[bool, dict[str, str], float]:
        if int(at // 60) != self.minute:
            self.minute, self.used = int(at // 60), 0
        good = self.used < PER_MINUTE
        self.used += good
        reset_s = (self.minute + 1) * 60 - at
        headers = {
            "RateLimit-Limit": f"{PER_MINUTE}, {PER_MINUTE};w=60",
            "RateLimit-Remaining": str(PER_MINUTE - self.used),
            "RateLimit-Reset": f"{reset_s:.0f}",
        }
        return good, headers, 0.0 if good else reset_s


@dataclass
class Fleet:
    """Pods that share the counter of the real scripts. ``hears``: what the vendor has left is charged."""

    store: Store | None
    hears: bool = True
    retries: int = 0
    began_us: int = 0
    paused_until: float = 0.0
    #: What pods will send with their next corrections.
    left: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_us = self.store.now_us if self.store is not None else 0

    def wants(self, at: float) -> bool:
        if self.store is None:
            return True
        if at < self.paused_until:
            return False
        self.store.now_us = self.began_us + int(at * 1_000_000)
        return self.store.admit().granted == 1

    def send(self, pod: int, at: float) -> None:
        assert self.store is not None
        self.store.now_us = self.began_us + int(at * 1_000_000)
        self.store.settle(most=self.left.pop(pod))


@dataclass
class Found:
    ok: int = 0
    refused: int = 0
    others: int = 0
    others_refused: int = 0
    #: (second, share of 429s in percent)
    line: list[tuple[float, float]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.ok + self.refused

    @property
    def goodput(self) -> float:
        """The part of what others leave."""
        left = sum(PER_MINUTE / 60 - others_per_s(second) for second in range(int(SECONDS)))
        return self.ok / min(left, OFFERED_PER_S * SECONDS)


def play(vendor: Any, fleet: Fleet, seed: int = 1) -> Found:
    """Calls, answers and the calls of others, in the order of their times."""
    draw, number, found = Random(seed), count(), Found()
    events: list[Any] = []

    def at(moment: float, what: str, *more: Any) -> None:
        heapq.heappush(events, (moment, next(number), what, *more))

    at(draw.expovariate(OFFERED_PER_S), "call")
    at(draw.expovariate(1), "other")
    minute = [0, 0]
    for second in range(20, int(SECONDS) + 1, 20):
        at(float(second), "look")
    while events:
        now, _, what, *more = heapq.heappop(events)
        if now > SECONDS:
            break
        if what == "call":
            at(now + draw.expovariate(OFFERED_PER_S), "call")
            at(now, "try", draw.randrange(PODS), 0)
        elif what == "try" and fleet.wants(now):
            good, headers, wait_s = vendor.ask(now)
            takes_s = ANSWER_S * draw.uniform(0.5, 1.5) if good else REFUSAL_S
            at(now + takes_s, "answer", *more, good, headers, wait_s)
        elif what == "answer":
            pod, tried, good, headers, wait_s = more
            found.ok, found.refused = found.ok + good, found.refused + (not good)
            minute[0], minute[1] = minute[0] + 1, minute[1] + (not good)
            if not good and tried < fleet.retries:
                at(now + max(wait_s, min(8, 0.5 * 2**tried) * draw.uniform(0.75, 1)), "try", pod, tried + 1)
            if fleet.store is not None:
                fleet.paused_until = max(fleet.paused_until, now + wait_s)
            if fleet.hears and fleet.store is not None:
                left = left_of((LIMIT,), stated_limits(headers)).get(LIMIT.name)
                if left is not None:
                    if pod not in fleet.left:
                        at(now + LEFT_WAIT_S, "send", pod)
                    fleet.left[pod] = min(left[0], fleet.left.get(pod, left[0]))
        elif what == "send":
            fleet.send(more[0], now)
        elif what == "other":
            at(now + draw.expovariate(others_per_s(now)), "other")
            good, _, _ = vendor.ask(now)
            found.others, found.others_refused = found.others + 1, found.others_refused + (not good)
        elif what == "look":
            found.line.append((now, 100 * minute[1] / max(1, minute[0])))
            minute = [0, 0]
    return found


FLEETS: dict[str, Callable[[Store], Fleet]] = {
    "clients' own retries, no limit": lambda _: Fleet(None, retries=2),
    "a limit of the right number": lambda store: Fleet(store, hears=False),
    "and what the vendor has left": Fleet,
}
VENDORS: dict[str, Callable[[], Any]] = {"bucket": Bucket, "fixed minute": FixedMinute}


def shared_key() -> Result:
    """T27."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            client = redis.Redis.from_url(server.url)
            found = {
                (vendor, name): play(make(), fleet(_store(client)))
                for vendor, make in VENDORS.items()
                for name, fleet in FLEETS.items()
            }
            stuck = play(Bucket(stuck=True), Fleet(_store(client)))
            client.close()
        finally:
            server.stop()
    rows = [("vendor", "", "429s", "429s of the others", "used of what the others leave")]
    for (vendor, name), one in found.items():
        rows.append((vendor, name, *_figures(one)))
    rows.append(("bucket that always reports 0", "and what the vendor has left", *_figures(stuck)))
    result = Result(
        key="T27",
        title="Others on the vendor's key",
        traffic=f"{PODS} pods make {OFFERED_PER_S:.0f} calls per s to a vendor that allows {PER_MINUTE} a"
        f" minute. Others use 20 % of the same key, and 40 % after {MORE_FROM_S:.0f} s. Answers take"
        f" {ANSWER_S:.0f} s on average. The counters are the real scripts. A bucket is full at first, so that"
        " more than 100 % can be used. In a fixed minute, who comes late finds it spent, whoever counts.",
        expected="Where the answers say what is left, a bucket refuses at most 1 % of the calls, and at least"
        " 95 % of what the others leave is used. A vendor whose figure is wrong stops no fleet.",
        charts=(
            Chart(
                "Calls that the vendor refuses (bucket)",
                "seconds",
                "% of 20 s",
                {name: found["bucket", name].line for name in FLEETS},
            ),
        ),
        table=tuple(rows),
    )
    usual, heard = (found["bucket", name] for name in list(FLEETS)[1:])
    result.check(
        f"Of the calls, {share(heard.refused, heard.requests)} are refused, instead of"
        f" {share(usual.refused, usual.requests)}",
        heard.refused <= 0.01 * heard.requests < usual.refused,
    )
    result.check(f"{100 * heard.goodput:.0f} % of what the others leave is used", heard.goodput >= 0.95)
    return result


def _store(client: redis.Redis) -> Store:
    client.flushall()
    return Store(client, [LIMIT])


def _figures(one: Found) -> tuple[str, str, str]:
    return (
        share(one.refused, one.requests),
        share(one.others_refused, one.others),
        f"{100 * one.goodput:.0f} %",
    )
