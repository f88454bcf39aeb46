"""A fleet of pods, a vendor with a limit, and others who use the same key. In virtual time."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import median_low
from typing import Any, Protocol

from msgspec.structs import replace

from fuseboard.batching.settlements import LEFT_WAIT_S
from fuseboard.calling.failures import ROOM_AGAIN_MS
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from fuseboard.learning.headers import stated_limits
from fuseboard.learning.remaining import left_of
from tests.agents.models.learner import Learner
from tests.agents.models.learning_oracle import TICK_US
from tests.agents.scripts import Store

PODS, PER_MINUTE, OFFERED_PER_S, ANSWER_S, REFUSAL_S = 20, 600, 12.0, 2.0, 0.05


@dataclass(frozen=True)
class Answer:
    """``wait_s``: the vendor's ``Retry-After``, ``None`` if it names no time."""

    good: bool
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float | None = None
    #: The time of a good answer; ``None`` for one like those of other vendors.
    takes_s: float | None = None


class Vendor(Protocol):
    def ask(self, at: float) -> Answer: ...

    def ended(self) -> None:
        """A call that it answered well has ended."""


@dataclass
class Bucket:
    """Refills all the time, and sends the headers of OpenAI. ``silent``: its answers say nothing.

    ``burst_s``: it makes up for a pause of so many seconds of its rate. ``stuck``: it reports 0 as left.
    """

    per_minute: Callable[[float], float]
    burst_s: float = 60.0
    stuck: bool = False
    silent: bool = False
    at: float = 0.0

    def __post_init__(self) -> None:
        self.level = self.per_minute(0) / 60 * self.burst_s

    def ask(self, at: float) -> Answer:
        limit = self.per_minute(at)
        per_s = limit / 60
        self.level, self.at = min(per_s * self.burst_s, self.level + (at - self.at) * per_s), at
        good = self.level >= 1
        self.level -= good
        if self.silent:
            return Answer(good)
        left = 0 if self.stuck else int(self.level)
        headers = {
            "x-ratelimit-limit-requests": f"{limit:.0f}",
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": f"{(limit - left) / per_s * 1000:.0f}ms",
        }
        return Answer(good, headers, 0.0 if good else (1 - self.level) / per_s)

    def ended(self) -> None:
        """Counts no calls in progress."""


@dataclass
class FixedMinute:
    """Counts the calls of each minute, and sends the headers of the IETF."""

    per_minute: Callable[[float], float] = lambda _: PER_MINUTE
    minute: int = -1
    used: int = 0

    def ask(self, at: float) -> Answer:
        if int(at // 60) != self.minute:
            self.minute, self.used = int(at // 60), 0
        limit = int(self.per_minute(at))
        good = self.used < limit
        self.used += good
        reset_s = (self.minute + 1) * 60 - at
        headers = {
            "RateLimit-Limit": f"{limit}, {limit};w=60",
            "RateLimit-Remaining": str(max(0, limit - self.used)),
            "RateLimit-Reset": f"{reset_s:.0f}",
        }
        return Answer(good, headers, 0.0 if good else reset_s)

    def ended(self) -> None:
        """Counts no calls in progress."""


@dataclass
class AtOnce:
    """Allows so many calls in progress. Its answers say nothing, and its 429s name no time."""

    most: Callable[[float], float]
    busy: int = 0

    def ask(self, at: float) -> Answer:
        good = self.busy < int(self.most(at))
        self.busy += good
        return Answer(good)

    def ended(self) -> None:
        self.busy -= 1


@dataclass
class Pool:
    """Own machines, one call each. It refuses nothing until its queue is ``longest_s`` long: calls wait."""

    machines: Callable[[float], float]
    longest_s: float = 20.0
    #: When each machine is free.
    free: list[float] = field(default_factory=list)
    draw: Random = field(default_factory=lambda: Random(5))

    def ask(self, at: float) -> Answer:
        number = int(self.machines(at))
        while len(self.free) > number:
            heapq.heappop(self.free)
        while len(self.free) < number:
            heapq.heappush(self.free, at)
        waits_s = max(0.0, self.free[0] - at)
        if waits_s > self.longest_s:
            return Answer(good=False)
        takes_s = waits_s + ANSWER_S * self.draw.uniform(0.5, 1.5)
        heapq.heapreplace(self.free, at + takes_s)
        return Answer(good=True, takes_s=takes_s)

    def ended(self) -> None:
        """The queue knows when."""


@dataclass
class Fleet:
    """Pods that share the counter of the real scripts; without ``store``, each client for itself.

    ``hears``: what the vendor has left is charged. ``learner``: the limit follows the vendor.
    """

    store: Store | None
    limit: Limit
    hears: bool = True
    learner: Learner | None = None
    retries: int = 0
    paused_until: float = 0.0
    #: By pod: what it sends with its next corrections, and the limit that the vendor last stated to it.
    left: dict[int, int] = field(default_factory=dict)
    stated: dict[int, int] = field(default_factory=dict)
    #: By pod: calls since its last report.
    asked: Counter[int] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    #: By pod: the times of calls since its last report.
    took: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_us = self.store.now_us if self.store is not None else 0

    def _now_us(self, at: float) -> int:
        return self.began_us + int(at * 1_000_000)

    def wants(self, pod: int, at: float) -> str | None:
        """The token of the call that the pod makes; ``None`` if it makes none."""
        if self.store is None:
            return ""
        self.asked[pod] += 1
        self.store.now_us = self._now_us(at)
        allowed = at >= self.paused_until and self.store.admit().granted == 1
        return f"b{self.store.batches}.1" if allowed else None

    def answered(self, pod: int, at: float, answer: Answer, token: str, took_s: float) -> bool:
        """Whether the pod has a figure to send that it did not have before."""
        if self.store is None:
            return False
        if self.limit.algorithm is Algorithm.CONCURRENCY:
            self.store.now_us = self._now_us(at)
            self.store.settle(tokens=(token,))
        if answer.good:
            self.took.setdefault(pod, []).append(took_s)
        self.sent[pod] += 1
        self.refused[pod] += not answer.good
        if not answer.good:
            wait_s = ROOM_AGAIN_MS / 1000 if answer.wait_s is None else answer.wait_s
            self.paused_until = max(self.paused_until, at + wait_s)
        heard = left_of((self.limit,), stated_limits(answer.headers)).get(self.limit.name)
        if heard is None or not self.hears:
            return False
        left, self.stated[pod] = heard
        first = pod not in self.left
        self.left[pod] = min(left, self.left.get(pod, left))
        return first

    def send(self, pod: int, at: float) -> None:
        assert self.store is not None
        self.store.now_us = self._now_us(at)
        self.store.settle(most=self.left.pop(pod))

    def report(self, pod: int, at: float) -> int:
        """To ``learn.lua``: the limit that applies from now on."""
        assert self.store is not None
        assert self.learner is not None
        self.learner.now_us = self._now_us(at)
        counts = (self.asked.pop(pod, 0), self.sent.pop(pod, 0), self.refused.pop(pod, 0))
        took = self.took.pop(pod, [])
        took_us = int(median_low(took) * 1e6) if took else 0
        number = self.learner.report(f"pod-{pod}", *counts, self.stated.pop(pod, 0), took_us).limit
        burst = max(1, self.limit.burst * number // self.limit.limit)
        self.store.limits = [replace(self.limit, limit=number, burst=burst)]
        return number


@dataclass
class Found:
    ok: int = 0
    others: int = 0
    others_refused: int = 0
    #: When the vendor refused calls of the fleet.
    refusals: list[float] = field(default_factory=list)
    #: When it answered calls of the fleet.
    answers: list[float] = field(default_factory=list)
    #: (second, seconds that a good answer took)
    took: list[tuple[float, float]] = field(default_factory=list)
    #: (second, the limit that followed)
    followed: list[tuple[float, float]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.answers)

    @property
    def refused(self) -> int:
        return len(self.refusals)


def play(
    vendor: Vendor, fleet: Fleet, *, seconds: float, others_per_s: Callable[[float], float], seed: int = 1
) -> Found:
    """Calls, answers, reports, and the calls of others, in the order of their times."""
    draw, number, found = Random(seed), count(), Found()
    events: list[Any] = []

    def at(moment: float, what: str, *more: Any) -> None:
        heapq.heappush(events, (moment, next(number), what, *more))

    at(draw.expovariate(OFFERED_PER_S), "call")
    at(draw.expovariate(1), "other")
    for pod in range(PODS if fleet.learner is not None else 0):
        at(draw.uniform(0, TICK_US / 1e6), "report", pod)
    while events:
        now, _, what, *more = heapq.heappop(events)
        if now > seconds:
            break
        if what == "call":
            at(now + draw.expovariate(OFFERED_PER_S), "call")
            at(now, "try", draw.randrange(PODS), 0)
        elif what == "try" and (token := fleet.wants(more[0], now)) is not None:
            answer = vendor.ask(now)
            takes_s = ANSWER_S * draw.uniform(0.5, 1.5) if answer.good else REFUSAL_S
            takes_s = answer.takes_s or takes_s
            at(now + takes_s, "answer", *more, answer, token, takes_s)
        elif what == "answer":
            pod, tried, answer, token, took_s = more
            found.answers.append(now)
            if answer.good:
                vendor.ended()
                found.ok += 1
                found.took.append((now, took_s))
            else:
                found.refusals.append(now)
                if tried < fleet.retries:
                    own_s = min(8, 0.5 * 2**tried) * draw.uniform(0.75, 1)
                    at(now + max(answer.wait_s or 0, own_s), "try", pod, tried + 1)
            if fleet.answered(pod, now, answer, token, took_s):
                at(now + LEFT_WAIT_S, "send", pod)
        elif what == "send":
            fleet.send(more[0], now)
        elif what == "other":
            at(now + draw.expovariate(others_per_s(now)), "other")
            found.others += 1
            if vendor.ask(now).good:
                at(now + ANSWER_S, "ended")
            else:
                found.others_refused += 1
        elif what == "ended":
            vendor.ended()
        elif what == "report":
            at(now + TICK_US / 1e6 * draw.uniform(0.8, 1.2), "report", *more)
            limit = fleet.report(more[0], now)
            if more[0] == 0:
                found.followed.append((now, limit))
    return found
