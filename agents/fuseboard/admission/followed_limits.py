"""Limits that follow what the vendor really allows, between a floor and the configured number.

``lua/learn.lua`` decides for all pods. Each pod reports to it what it saw, and applies what it answers.
Without Redis, the last number applies for ten minutes, and then the configured one.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from fuseboard.admission.call_outcomes import CallOutcomes
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract import keys
from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import LEARN
from fuseboard.contract.words import Algorithm, Reason
from fuseboard.store.store import ConnectionLostError, Reply, Store

log = logging.getLogger("fuseboard.limits")

#: The script decides once in this time.
TICK_S = 5.0
#: A pod that saw nothing reports this rarely: it wants to know the number.
QUIET_S = 60.0
#: Without an answer of the script, its last number applies for this time.
KEPT_S = 600.0
#: Smaller changes, in percent of the configured limit, are not worth new demands.
SMALLEST_CHANGE = 1

_CAUSES = {
    0: "as configured",
    1: "the vendor states it",
    2: "the vendor refused calls",
    3: "there is room again",
    4: "calls take longer",
    5: "the lowest time of calls is measured",
}


class _Seen(Struct):
    """Totals when the pod last reported, and when that was."""

    asked: int = 0
    sent: int = 0
    refused: int = 0
    at: float = float("-inf")


class _Number(Struct):
    """The last answer of the script, and when it came."""

    limit: int
    at: float


class FollowedLimits:
    """Belongs to the event loop."""

    def __init__(self, *, outcomes: CallOutcomes, store: Store) -> None:
        self._outcomes = outcomes
        self._store = store
        #: Dependency -> its limits that follow.
        self._limits: dict[str, tuple[Limit, ...]] = {}
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._numbers: dict[tuple[str, str], _Number] = {}
        #: Dependencies with slots and other limits: refusals that name a time are about the others.
        self._mixed: frozenset[str] = frozenset()
        self._floor_percent = 0
        #: Dependency whose limits of calls at once follow the time of its calls -> by how much it may rise.
        self._rises: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        outcomes.configuration.listen(self.adopt)

    def start(self) -> None:
        self.adopt(self._outcomes.configuration.snapshot)
        self._later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def adopt(self, snapshot: Snapshot) -> None:
        """Follow for the limits of this configuration. The configured limits were applied before."""
        self._floor_percent = snapshot.tuning.vendor_floor_percent
        self._limits = {
            dependency.name: limits
            for dependency in snapshot.policy.dependencies
            if self._floor_percent and (limits := tuple(filter(follows, dependency.vendor_limits)))
        }
        self._mixed = frozenset(
            dependency.name
            for dependency in snapshot.policy.dependencies
            if {limit.algorithm is Algorithm.CONCURRENCY for limit in dependency.vendor_limits}
            == {True, False}
        )
        kept = {(name, limit.name) for name, limits in self._limits.items() for limit in limits}
        for known in (self._seen, self._numbers, self._outcomes.followed, self._outcomes.paces):
            for key in known.keys() - kept:
                known.pop(key)
        self._rises = {
            dependency.name: dependency.latency_rise_percent
            for dependency in snapshot.policy.dependencies
            if dependency.latency_rise_percent and any(map(_is_slots, self._limits.get(dependency.name, ())))
        }
        took = self._outcomes.took
        for name in took.keys() - self._rises:
            del took[name]
        for name in self._rises:
            took.setdefault(name, [])
        for name, limits in self._limits.items():
            for limit in limits:
                # The calls that the pod saw before are not about this limit.
                self._seen.setdefault((name, limit.name), self._totals(name, limit))
            self._apply(name)

    def _totals(self, name: str, limit: Limit) -> _Seen:
        outcomes, slots = self._outcomes, _is_slots(limit)
        reason = Reason.CONCURRENCY if slots else Reason.VENDOR_LIMIT
        sent, blocked = outcomes.counters.calls_of(name, reason)
        refused = outcomes.limited_shortly if slots and name in self._mixed else outcomes.limited
        return _Seen(sent + blocked, sent, refused.get(name, 0))

    def _later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S * random.uniform(0.8, 1.2), self.look)

    def look(self) -> None:
        """Report what this pod saw, and forget numbers that are too old."""
        self._later()
        now = monotonic()
        for name, limits in self._limits.items():
            took_us = self._took_us(name)
            for limit in limits:
                number = self._numbers.get((name, limit.name))
                if number is not None and now - number.at >= KEPT_S:
                    del self._numbers[name, limit.name]
                    self._outcomes.paces.pop((name, limit.name), None)
                    self._apply(name)
                self._report(name, limit, now, took_us)

    def _took_us(self, name: str) -> int:
        """The median of the times of calls since the last report; 0 for unknown."""
        took = self._outcomes.took.get(name)
        if not took:
            return 0
        took.sort()
        middle = took[(len(took) - 1) // 2]
        took.clear()
        return max(1, int(middle * 1_000_000))

    def _report(self, name: str, limit: Limit, now: float, took_us: int) -> None:
        outcomes = self._outcomes
        environment = outcomes.configuration.environment
        key = keys.learned(environment, name, limit.name).encode()
        counter = keys.vendor_limit(environment, name, limit.name).encode()
        if not outcomes.health.usable or not self._store.serves(key):
            return
        total, before = self._totals(name, limit), self._seen[name, limit.name]
        # A call may have ended whose outcome is counted a moment later.
        if total.asked == before.asked and not took_us and now - before.at < QUIET_S:
            return
        total.at = now
        self._seen[name, limit.name] = total
        arguments = (
            outcomes.decisions.server,
            total.asked - before.asked,
            total.sent - before.sent,
            # The other count may be lower, if an edit has added the first limit that is not of slots.
            max(0, total.refused - before.refused),
            outcomes.seen_limits.number(name, limit.name),
            limit.limit,
            self._floor(limit),
            int(TICK_S * 1_000_000),
            *((took_us, self._rises.get(name, 0)) if _is_slots(limit) else (0, 0)),
        )
        self._store.run(LEARN, (key, counter), arguments, self._answered(name, limit))

    def _answered(self, name: str, limit: Limit) -> Callable[[Reply], None]:
        def answered(reply: Reply) -> None:
            if isinstance(reply, list) and len(reply) == 7 and all(type(part) is int for part in reply):
                self._learn(name, limit, reply)
            elif not isinstance(reply, ConnectionLostError):
                self._outcomes.health.failed(f"learn: {reply}")

        return answered

    def _learn(self, name: str, limit: Limit, reply: list[int]) -> None:
        if limit not in self._limits.get(name, ()):
            return  # the configuration has changed meanwhile
        number, _, _, cause, share, lowest_us, present_us = reply
        if lowest_us:
            self._outcomes.paces[name, limit.name] = (present_us // 1000, lowest_us // 1000)
        else:
            self._outcomes.paces.pop((name, limit.name), None)
        number = max(self._floor(limit), min(limit.limit, number))
        before = self._numbers.get((name, limit.name))
        self._numbers[name, limit.name] = _Number(number, monotonic())
        was = before.limit if before is not None else limit.limit
        if number != was:
            log.info(
                "limits.followed dependency=%s limit=%s: %d -> %d of %d, because %s%s",
                name,
                limit.name,
                was,
                number,
                limit.limit,
                _CAUSES.get(cause, "of a newer script"),
                f" ({share / 100:.1f} %)" if cause == 2 else "",
            )
        self._apply(name)

    def _apply(self, name: str) -> None:
        """Decide by the followed numbers from now on."""
        breaker = self._outcomes.breakers.get(name)
        configured = self._outcomes.configuration.snapshot.dependency(name)
        if breaker is None or configured is None:
            return
        present = {limit.name: limit.limit for limit in breaker.dependency.vendor_limits}
        limits = tuple([self._followed(name, limit) for limit in configured.vendor_limits])
        for limit, usual in zip(limits, configured.vendor_limits, strict=True):
            change = abs(limit.limit - present.get(limit.name, 0)) * 100
            at_a_bound = limit.limit in (usual.limit, self._floor(usual))
            if change and (at_a_bound or change >= SMALLEST_CHANGE * usual.limit):
                breaker.adopt(replace(configured, vendor_limits=limits))
                self._outcomes.configuration.rules_changed()
                return

    def _floor(self, limit: Limit) -> int:
        return max(1, limit.limit * self._floor_percent // 100)

    def _followed(self, name: str, limit: Limit) -> Limit:
        number = self._numbers.get((name, limit.name))
        if number is None or number.limit >= limit.limit:
            self._outcomes.followed.pop((name, limit.name), None)
            return limit
        # The floor, or the configured limit, may be higher than when the number was learned.
        lowered = max(self._floor(limit), number.limit)
        self._outcomes.followed[name, limit.name] = lowered
        burst = limit.burst
        if limit.algorithm is Algorithm.TOKEN_BUCKET:
            burst = max(1, limit.burst * lowered // limit.limit)
        return replace(limit, limit=lowered, burst=burst)


def _is_slots(limit: Limit) -> bool:
    return limit.algorithm is Algorithm.CONCURRENCY


def follows(limit: Limit) -> bool:
    """Whether the limit can follow. A calendar budget cannot, and a shadow refuses nothing."""
    return limit.limit > 0 and limit.algorithm is not Algorithm.FIXED_WINDOW and not limit.shadow
