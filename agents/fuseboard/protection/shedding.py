"""Refuses requests of an overloaded pod: those of the lowest tiers first, and fairly within one tier.

A pod under pressure refuses the lowest tiers, or all but the highest. A pod whose queue or latency is over
its limit admits as many requests as it finishes, from the highest tier down. In the tier where that number
ends, each source gets the same: a source that asks for much does not displace one that asks for little.
"""

import logging
import random
from typing import NamedTuple

from msgspec import Struct

from fuseboard.contract.load import MAX_PRIORITIES, PriorityLoad
from fuseboard.contract.protection import Shedding
from fuseboard.contract.words import LoadLevel
from fuseboard.protection.fair_part import FairPart
from fuseboard.protection.switch import Switch

logger = logging.getLogger("fuseboard.shedding")

#: Tiers with different priorities are distinguished up to this number.
MAX_LEVELS = MAX_PRIORITIES
#: The weight of the last tick in a rate.
WEIGHT = 0.5
#: It lasts at least this long, and then begins again after this time at the earliest.
STEADY_S = 2.0
#: A limit is left at this part of it.
QUEUE_EXIT, LATENCY_EXIT = 0.5, 0.8
PRESSURE_EXIT = 0.1
#: The part is never less: without requests nothing is measured, and latency may have another cause than load.
MIN_PART = 0.25
#: While p95 is over its limit, the admitted part shrinks by this part of itself per second, and grows after
#: that. Slowly: what is in flight corrects most of it at once.
SHRINK_PER_S, GROW_PER_S = 0.02, 0.05
LONGEST_RETRY_S = 30.0
#: While shedding lasts, changes of what is refused are logged this often at most.
LOG_S = 10.0


class Load(NamedTuple):
    """The inputs of one tick."""

    #: Calls and requests that wait, and calls that found no place to wait in.
    waiting: float = 0.0
    #: p95 of the worst route, as a part of its SLA; ``None`` with too few samples.
    latency: float | None = None
    #: The name of that route.
    route: str = ""
    #: Its SLA, in seconds.
    sla_s: float = 0.0
    #: Requests whose response has not begun.
    unanswered: int = 0
    pressure: float = 0.0
    #: Calls that a bulkhead refused since the last tick. Their requests end at once, and are no work done.
    refused: int = 0


class Shed(Struct, frozen=True):
    """A request is refused."""

    #: ``queue``, ``latency`` or ``pressure``.
    cause: str
    retry_after_s: float


class Shedder:
    """``enter`` each request, ``leave`` it when it ends, ``tick`` four times per second.

    Not safe from several threads: ``fuseboard.protection.pod`` has a lock.
    """

    def __init__(self, settings: Shedding, priorities: tuple[int, ...], *, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self.settings = settings
        self._queue, self._latency, self._shed, self._hard = (Switch(0.0) for _ in range(4))
        self._by_rate = Switch(STEADY_S)
        #: Requests per second that the pod finishes, and that it admits while its queue or latency is over.
        self.rate = 0.0
        self.admitted_rate = 0.0
        #: The part of ``rate`` that is admitted because of latency; and what could be admitted.
        self._part = 1.0
        self._able = float("inf")
        self._finished = 0
        self._at: float | None = None
        self._logged = 0.0
        self._was_active = False
        #: Totals: refused requests by cause; and how often what is refused changed.
        self.refused = {"queue": 0, "latency": 0, "pressure": 0}
        self.changes = 0
        #: Levels below this index are refused; in this one, ``_fair`` decides; -1 for none.
        self.cut = -1
        self._cause = ""
        self._retry_s = 1.0
        self._fair = FairPart(self._random)
        self._levels: dict[int, int] = {}
        self._arrived: list[int] = []
        self._offered: list[float] = []
        #: Totals by level: requests that asked, up to the last tick, and those that were shed.
        self._asked: list[int] = []
        self._shed_of: list[int] = []
        self.configure(settings, priorities)

    def configure(self, settings: Shedding, priorities: tuple[int, ...]) -> None:
        """Use these settings, and the priorities of these tiers, from now on."""
        self.settings = settings
        distinct = sorted(set(priorities)) or [0]
        levels = {one: at * MAX_LEVELS // max(MAX_LEVELS, len(distinct)) for at, one in enumerate(distinct)}
        if levels != self._levels:
            self._levels = levels
            count = max(levels.values()) + 1
            self._arrived, self._offered = [0] * count, [0.0] * count
            self._asked, self._shed_of = [0] * count, [0] * count
            self._fair.forget()
            self.cut = -1

    @property
    def active(self) -> bool:
        """Whether something limits what the pod admits. It may still be enough for all requests."""
        return self._by_rate.on or self._shed.on or self._hard.on

    @property
    def level(self) -> LoadLevel:
        if self._hard.on:
            return LoadLevel.SHED_HARD
        return LoadLevel.SHED if self._shed.on or self._by_rate.on else LoadLevel.NORMAL

    # Requests

    def enter(self, priority: int, source: str) -> Shed | None:
        """``None`` when the request may go on. ``source``: who asks, such as a tenant."""
        level = self._levels.get(priority, 0)
        self._arrived[level] += 1
        if level > self.cut:
            return None
        if level == self.cut and self._fair.take(source):
            return None
        self.refused[self._cause] += 1
        self._shed_of[level] += 1
        return Shed(self._cause, self._retry_s * self._random.uniform(1.0, 1.5))

    def leave(self) -> None:
        """An admitted request has ended."""
        self._finished += 1

    def priorities(self) -> tuple[PriorityLoad, ...]:
        """Requests asked and shed, by the lowest priority of each level."""
        lowest: dict[int, int] = {}
        for priority, level in self._levels.items():
            lowest.setdefault(level, priority)
        return tuple(
            PriorityLoad(
                priority=priority,
                asked=max(self._shed_of[level], self._asked[level]),
                shed=self._shed_of[level],
            )
            for level, priority in lowest.items()
        )

    # The timer

    def tick(self, now: float, load: Load) -> None:
        """Decide what is refused until the next tick."""
        before, self._at = self._at, now
        if before is None or now <= before:
            return
        elapsed = now - before
        self._measure(elapsed, load)
        self._judge(now, load)
        self._steer(elapsed, load)
        self._cut(now, elapsed, load)

    def _measure(self, elapsed: float, load: Load) -> None:
        for level, arrived in enumerate(self._arrived):
            self._offered[level] += WEIGHT * (arrived / elapsed - self._offered[level])
            self._asked[level] += arrived
            self._arrived[level] = 0
        finished, self._finished = max(0, self._finished - load.refused) / elapsed, 0
        # While hardly anything waits the pod could do more, so this rate is a lower bound.
        if self._fill(load) >= 0.25 or finished > self.rate or not self._by_rate.on:
            self.rate += WEIGHT / 2 * (finished - self.rate)

    def _judge(self, now: float, load: Load) -> None:
        """The limits that are exceeded. Each is left at a lower value than it is entered at."""
        settings = self.settings
        most = settings.queue_max
        self._queue.judge(now, load.waiting > most, load.waiting <= most * QUEUE_EXIT)
        late = (load.latency or 0.0) * 100
        self._latency.judge(now, late > settings.p95_percent, late < settings.p95_percent * LATENCY_EXIT)
        pressure, exit_ = load.pressure, PRESSURE_EXIT
        shed_at, hard_at = settings.shed_at / 100, settings.shed_hard_at / 100
        self._shed.judge(now, pressure > shed_at, pressure < shed_at - exit_)
        self._hard.judge(now, pressure > hard_at, pressure < hard_at - exit_)
        # With one level there is no lower one to refuse: then pressure limits the rate.
        alone = len(self._offered) == 1
        over = self._queue.on or self._latency.on or (alone and self._shed.on)
        enough = self._able >= sum(self._offered)
        self._by_rate.judge(now, over, not over and enough)

    def _steer(self, elapsed: float, load: Load) -> None:
        """How many requests per second are admitted: down fast, up slowly."""
        if not self._by_rate.on:
            self._part, self._able, self.admitted_rate = 1.0, float("inf"), float("inf")
            return
        if self._latency.on or (len(self._offered) == 1 and self._shed.on):
            self._part = max(MIN_PART, self._part * (1 - SHRINK_PER_S) ** elapsed)
        else:
            self._part = min(1.0, self._part + GROW_PER_S * elapsed)
        # Half a queue is the aim: it is never empty, and a burst still has room.
        step = min(0.05, max(-0.3, 0.2 * (0.5 - self._fill(load))))
        self._able = max(1.0, self.rate * self._part * (1 + step))
        # Not far above what is asked for: a burst must not pass as a whole.
        self.admitted_rate = min(self._able, sum(self._offered) * 1.05 + 1)

    def _fill(self, load: Load) -> float:
        """The queue as a part of its limit, or the time that a request takes, whichever is more."""
        fill = load.waiting / self.settings.queue_max
        if load.sla_s and self.rate:
            # By Little's law, how long a request takes that comes now. p95 says it much later.
            limit_s = load.sla_s * self.settings.p95_percent / 100
            fill = max(fill, load.unanswered / self.rate / limit_s)
        return fill

    def _cut(self, now: float, elapsed: float, load: Load) -> None:
        cut, left = -1, self.admitted_rate
        for level in range(len(self._offered) - 1, -1, -1):
            if self._offered[level] > left:
                cut = level
                break
            left -= self._offered[level]
        cause = "queue" if self._queue.on or not self._latency.on else "latency"
        floor = len(self._offered) - 1 if self._hard.on else 1 if self._shed.on else 0
        floor = min(floor, len(self._offered) - 1)
        if floor > cut and floor > 0:
            # Everything of this level passes, and nothing below it.
            cut, left, cause = floor, float("inf"), "pressure"
        elif cut >= 0 and not self._queue.on and not self._latency.on and self._shed.on:
            cause = "pressure"
        self._fair.tick(left, elapsed, now, forget=cut != self.cut)
        self._retry_s = self._time_to_drain(load, cause)
        moved = (cut, cause) != (self.cut, self._cause)
        self.cut, self._cause = cut, cause
        self._note(now, load, moved=moved)

    def _time_to_drain(self, load: Load, cause: str) -> float:
        if cause == "pressure":
            exit_at = (self.settings.shed_hard_at if self._hard.on else self.settings.shed_at) / 100
            wait_s = (load.pressure - exit_at + PRESSURE_EXIT) * 10  # it falls by 0.1 per second
        else:
            wait_s = load.waiting / self.rate if self.rate > 0 else 1.0
        return min(LONGEST_RETRY_S, max(1.0, wait_s))

    def _note(self, now: float, load: Load, *, moved: bool) -> None:
        """One line for each change, with what it was decided from."""
        began, self._was_active = self.active != self._was_active, self.active
        if not began and not (moved and self.active):
            return
        self.changes += 1
        if not began and now - self._logged < LOG_S:
            return
        self._logged = now
        word = "changed" if not began else "began" if self.active else "ended"
        logger.log(
            logging.WARNING if self.active else logging.INFO,
            "shedding.%s cause=%s refused_below=%s waiting=%d queue_max=%d p95=%s route=%s pressure=%.2f"
            " finished_per_s=%.1f admitted_per_s=%.1f offered_per_s=%.1f",
            *(word, self._cause, self._name(), load.waiting, self.settings.queue_max),
            *(_percent(load.latency), load.route or "-", load.pressure, self.rate, self.admitted_rate),
            sum(self._offered),
        )

    def _name(self) -> str:
        """The priority below which every request is refused."""
        return str(next((one for one, level in self._levels.items() if level == self.cut), "-"))


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"
