"""What ``learn.lua`` should do, written as simply as possible and without sharing code with it."""

from dataclasses import dataclass, field
from math import ceil, floor

TICK_US = 5_000_000
WINDOW, HELD, BACK, HEARD = 6, 2, 18, 60
RECENT, STALE, PROBE = 2, 120, 24


@dataclass
class Pod:
    asked: float = 0
    sent: float = 0
    refused: float = 0
    number: int = 0
    heard_us: int = 0
    reported_us: int = 0
    called_us: int = 0


@dataclass
class Times:
    """What calls take, by pod: (us, when it was reported)."""

    near_us: int
    pods: dict[str, tuple[int, int]] = field(default_factory=dict)
    lowest: int = 0
    present: int = 0
    before: int = 0
    #: The end of a measurement, 0 for none; and until when nothing moves by time.
    ends_us: int = 0
    rests_us: int = 0

    def counts(self, took: int, ago: int) -> bool:
        """Long calls end seldom, and few are made while the lowest time is measured."""
        return ago <= RECENT * TICK_US or (bool(self.ends_us) and ago <= min(PROBE * TICK_US / 2, 2 * took))

    def middle(self, now: int, *, alone: bool) -> tuple[int, int]:
        """The times of the pod in the middle; of two, first the faster one."""
        times = sorted(took for took, at in self.pods.values() if self.counts(took, now - at))
        if not times or (len(times) == 1 and not alone):
            return 0, 0
        return times[ceil(len(times) / 2) - 1], times[len(times) // 2]


@dataclass
class Fleet:
    ceiling: int
    lowest: int
    began_us: int
    #: 1 plus the part by which calls may take longer; 1 for not by time.
    rise: float = 1
    limit: float = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    window: list[tuple[float, float]] = field(default_factory=list)
    steps: int = 0
    generation: int = 0

    def __post_init__(self) -> None:
        self.limit = self.bound = float(self.ceiling)
        self.due_us = self.began_us + TICK_US
        self.was = self.fell = 0.0
        self.fell_us = self.held_us = 0
        self.times = Times(self.began_us) if self.rise > 1 else None

    def applied(self) -> int:
        times = self.times
        if times is None or not times.ends_us:
            return floor(self.limit)
        quiet = self.limit * 0.8 / self.rise if times.lowest else 0
        return floor(max(self.lowest, quiet))

    def report(
        self,
        name: str,
        asked: int,
        sent: int,
        refused: int,
        number: int,
        now: int,
        took: int = 0,
        used: int = 0,
    ) -> int:
        if (times := self.times) is not None:
            times.pods = {pod: (one, min(at, now)) for pod, (one, at) in times.pods.items()}
            if took:
                times.pods[name] = (took, now)
            times.near_us = min(times.near_us, now)
            latest = now + PROBE * TICK_US
            times.ends_us, times.rests_us = min(times.ends_us, latest), min(times.rests_us, latest)
        pod = self.pods.setdefault(name, Pod())
        pod.asked, pod.sent, pod.refused = pod.asked + asked, pod.sent + sent, pod.refused + refused
        pod.reported_us = now
        if sent:
            pod.called_us = now
        if number:
            pod.number, pod.heard_us = number, now
        self.due_us = min(self.due_us, now + TICK_US)
        self.held_us = min(self.held_us, now + HELD * TICK_US)
        self.fell_us = min(self.fell_us, now)
        for known in self.pods.values():
            known.reported_us, known.heard_us = min(known.reported_us, now), min(known.heard_us, now)
            known.called_us = min(known.called_us, now)
        if now >= self.due_us:
            self.step(now, used)
        return self.applied()

    def agreed(self, now: int) -> int:
        lately = now - HEARD * TICK_US
        numbers = [pod.number for pod in self.pods.values() if pod.number and pod.heard_us >= lately]
        calling = [pod for pod in self.pods.values() if pod.called_us and pod.called_us >= lately]
        alone = len(numbers) == 1 and all(pod.number and pod.heard_us >= lately for pod in calling)
        if not numbers:
            return self.ceiling
        most = min(set(numbers), key=lambda number: (-numbers.count(number), number))
        votes = numbers.count(most)
        return most if alone or (votes >= 2 and 2 * votes >= len(numbers)) else self.ceiling

    def count(self) -> tuple[bool, float, float]:
        active = [self.pods[name] for name in sorted(self.pods, key=str.encode) if self.pods[name].sent]
        every = sum(pod.sent for pod in active)
        asked = sent = refused = 0.0
        rows: list[tuple[float, float]] = []
        for pod in active:
            others = every - pod.sent
            most = 2 * others / (len(active) - 1) if len(active) > 1 else pod.sent
            part = min(1, most / pod.sent)
            rows.append((pod.sent * part, min(pod.refused, pod.sent) * part))
            asked, sent, refused = asked + pod.asked * part, sent + rows[-1][0], refused + rows[-1][1]
        binds = asked > 1.02 * sent
        if len(rows) > 1:
            worst, second = sorted((bad for _, bad in rows), reverse=True)[:2]
            refused = refused - worst + second
        return binds, sent, refused

    def calling(self, now: int) -> int:
        lately = now - WINDOW * TICK_US
        return sum(bool(pod.called_us) and pod.called_us >= lately for pod in self.pods.values())

    def slack(self, now: int) -> float | None:
        """By what factor calls may take longer than now; ``None`` for unknown."""
        times = self.times
        if times is None:
            return None
        fast, slow = times.middle(now, alone=self.calling(now) <= 1)
        lately, times.present = max(slow, times.before), fast
        if slow or not times.ends_us:
            times.before = slow
        if times.ends_us:
            if now >= times.ends_us:
                times.lowest, times.near_us = slow or times.lowest or times.before, now
                times.ends_us, times.rests_us = 0, now + TICK_US + times.lowest
            return None
        if not slow:
            return None
        times.lowest = min(times.lowest, lately)
        if slow <= times.lowest * (1 + self.rise) / 2:
            times.near_us = now
        if not times.lowest or (now - times.near_us > STALE * TICK_US and self.limit < self.ceiling):
            times.ends_us = now + min(PROBE * TICK_US, 2 * TICK_US + 3 * slow)
            return None
        return self.rise * times.lowest / fast

    def step(self, now: int, used: int) -> None:
        before, bound = self.applied(), float(max(self.lowest, min(self.ceiling, self.agreed(now))))
        binds, *counted = self.count()
        rests = now < self.held_us
        reporting = sum(pod.sent > 0 for pod in self.pods.values())
        slack, times = self.slack(now), self.times
        waits = reporting == 1 and self.calling(now) > 1 and not rests
        if not rests and not waits:
            self.window = [*self.window, (counted[0], counted[1])][-WINDOW:]
        sent = refused = 0.0
        for one in self.window:
            sent, refused = sent + one[0], refused + one[1]
        share = refused / sent if sent > 0 else 0.0
        if counted[1] >= 2 and not waits:
            share = max(share, counted[1] / counted[0])
        if self.bound < min(bound, self.ceiling):
            self.limit, self.was, self.fell = (
                min(number * bound / self.bound, bound) for number in (self.limit, self.was, self.fell)
            )
        self.bound = bound
        self.limit = min(self.limit, bound)
        if refused >= 2 and share > 0.01:
            lower = self.limit * (1 - min(0.3, (share - 0.01) / 2 + 0.01))
            self.was, self.fell, self.fell_us = self.limit, self.limit - lower, now
            self.held_us, self.window, self.limit = now + HELD * TICK_US, [], lower
        elif times and slack is not None and slack < 1 and now >= times.rests_us and 2 * used >= self.limit:
            self.limit *= max(0.7, slack)
            times.rests_us = now + min(PROBE * TICK_US, max(HELD * TICK_US, TICK_US + times.present))
        elif share <= 0.005 and self.limit < bound and not (rests or waits):
            full = slack is not None and used >= floor(self.limit)
            if (binds or full) and (times is None or (now >= times.rests_us and not times.ends_us)):
                self.limit = max(self.limit, self.next_up(now, bound, slack))
        self.limit = max(self.lowest, min(bound, self.limit))
        if self.limit >= self.ceiling:
            self.was = self.fell = 0.0
            self.fell_us = 0
        self.generation += self.applied() != before
        self.steps, self.due_us = self.steps + 1, now + TICK_US
        self.pods = {name: pod for name, pod in self.pods.items() if now - pod.reported_us <= HEARD * TICK_US}
        for pod in self.pods.values() if not waits else ():
            pod.asked = pod.sent = pod.refused = 0
        if times is not None:
            times.pods = {pod: one for pod, one in times.pods.items() if times.counts(one[0], now - one[1])}

    def next_up(self, now: int, bound: float, slack: float | None) -> float:
        most = float("inf")
        if slack is not None and self.times is not None:
            part = min(0.1, (slack - 1) / 2) * min(1, TICK_US / self.times.present)
            most = self.limit * (1 + part)
        if not self.fell_us:
            return self.limit + 0.01 * bound if slack is None else most
        x = ((now - self.fell_us) / TICK_US - BACK) / BACK
        scale = self.fell if x < 0 else max(self.fell, 0.05 * bound)
        return min(most, self.was + scale * x * x * x - 0.01 * self.was)
