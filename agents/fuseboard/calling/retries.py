"""The retries of a pod: what allows them, and what became of them.

Threads share it with the event loop, so everything that changes is behind one lock.
"""

import logging
from collections.abc import Callable, Mapping
from random import Random
from threading import Lock
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from fuseboard.calling.observer import Observer
from fuseboard.calling.retry_budget import ErrorWindow, ProcessBudget, RetryBudget, Withdrawal, allowance
from fuseboard.contract.load import MAX_CALL_LOADS, CallLoad
from fuseboard.contract.protection import PodProtection, Retry

logger = logging.getLogger("fuseboard.retries")

#: How much of the newest duration goes into the usual one.
NEWEST = 0.2
#: Calls with more attempts are counted with those that had this many.
MAX_ATTEMPTS = 10
#: At most one line about a spent budget per dependency in this time.
LOG_EVERY_S = 1.0


class Capacity(Struct, frozen=True, kw_only=True):
    """How busy the calls to a dependency are, as far as this pod knows."""

    #: The breaker is closed.
    closed: bool = True
    #: The mean wait of recent calls for a slot; ``None`` without a bulkhead.
    mean_wait_s: float | None = None
    #: Used slots of all, 0 to 1.
    saturation: float = 0.0


class CallTotals(Struct):
    """Since the process started, for the heartbeat."""

    first_calls: int = 0
    retries: int = 0
    #: Calls that ended well because of a retry.
    helped: int = 0
    #: Retries that the budget refused.
    no_budget: int = 0
    #: Calls whose last allowed attempt failed.
    exhausted: int = 0
    #: Calls that ended after one attempt, two attempts, and so on.
    attempts: list[int] = field(default_factory=lambda: [0] * MAX_ATTEMPTS)
    #: Retries that the budget would have refused, but may only observe.
    observed: int = 0
    #: Answers of a fallback, those from a cache among them, and calls for which every fallback failed.
    fallbacks: int = 0
    cached: int = 0
    fallback_failures: int = 0

    def ended(self, attempts: int) -> None:
        self.attempts[min(attempts, MAX_ATTEMPTS) - 1 if attempts > 1 else 0] += 1

    @property
    def any(self) -> bool:
        """Something was counted that only a protected dependency has."""
        return bool(
            self.retries or self.no_budget or self.observed or self.fallbacks or self.fallback_failures
        )


class DependencyRetries:
    """The retries of calls to one dependency."""

    __slots__ = (
        "_logged_s",
        "_unlogged",
        "budget",
        "errors",
        "failed_before",
        "name",
        "totals",
        "unused",
        "usual_s",
        "warned",
    )

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.budget = RetryBudget(now)
        self.errors = ErrorWindow()
        self.totals = CallTotals()
        #: The attempt that ended last failed.
        self.failed_before = False
        #: How long an attempt that ends well takes, smoothed.
        self.usual_s = 0.0
        #: It was logged that the policy allows no retries, or that a request may not be repeated.
        self.warned = False
        #: Why calls do not use the retries that the policy allows; empty if that was never seen.
        self.unused = ""
        self._logged_s: float | None = None
        self._unlogged = 0

    def unlogged(self, now: float) -> int | None:
        """How many lines about a spent budget were left out before this one; ``None`` to leave it out too.

        In an outage, every call would log one. Under the lock.
        """
        if self._logged_s is not None and now - self._logged_s < LOG_EVERY_S:
            self._unlogged += 1
            return None
        self._logged_s, left_out, self._unlogged = now, self._unlogged, 0
        return left_out


class Retries:
    """All dependencies of a process."""

    def __init__(
        self,
        *,
        settings: Callable[[str], Retry | None],
        protection: Callable[[], PodProtection | None],
        now_us: Callable[[], int],
        live_servers: Callable[[], int],
        capacity: Callable[[str], Capacity] = lambda _: Capacity(),
        clock: Callable[[], float] = monotonic,
        random: Random | None = None,
    ) -> None:
        #: The retries that the policy allows a dependency; ``None`` for none.
        self.settings = settings
        self._protection, self._now_us, self._live_servers = protection, now_us, live_servers
        self.capacity = capacity
        self.clock = clock
        self.random = random if random is not None else Random()
        self.lock = Lock()
        #: The observer shows attempts to people; ``None`` for none.
        self.observer: Observer | None = None
        self._process = ProcessBudget()
        self._parts: dict[str, DependencyRetries] = {}
        #: Retries per 1,000 s that the control plane allows, and until when.
        self._caps: Mapping[str, int] = {}
        self._caps_until = 0.0

    def note_unused(self, dependency: str, why: str) -> None:
        """Log once, as a warning, that these calls do not use the retries that the policy allows."""
        retry = self.settings(dependency)
        if retry is None or retry.attempts <= 1:
            return
        part = self.part(dependency)
        with self.lock:
            known, part.unused = part.unused, why
        if not known:
            logger.warning("retry.unused dependency=%s attempts=%s: %s", dependency, retry.attempts, why)

    def unused(self) -> dict[str, str]:
        """Dependency -> why calls do not use the retries that its policy allows."""
        with self.lock:
            return {name: part.unused for name, part in self._parts.items() if part.unused}

    def part(self, dependency: str) -> DependencyRetries:
        part = self._parts.get(dependency)
        if part is None:
            with self.lock:
                part = self.part_unlocked(dependency)
        return part

    def part_unlocked(self, dependency: str) -> DependencyRetries:
        """Return the part, for a caller that has the lock."""
        part = self._parts.get(dependency)
        if part is None:
            part = DependencyRetries(dependency, self.clock())
            self._parts[dependency] = part
        return part

    def cap(self, caps: Mapping[str, int], valid_s: float) -> None:
        """Apply the part that the control plane allows this pod besides its budget. Without news, it ends."""
        self._caps, self._caps_until = caps, self.clock() + valid_s

    def totals(self) -> dict[str, CallTotals]:
        """By dependency, for those that were called in a way that counts here."""
        return {name: part.totals for name, part in self._parts.copy().items()}

    def reported(self, loads: tuple[CallLoad, ...]) -> tuple[CallLoad, ...]:
        """The loads for a heartbeat, with their totals. Dependencies without a load follow."""
        totals = self.totals()
        known = [_with(load, totals.pop(load.dependency, CallTotals())) for load in loads]
        added = [_with(CallLoad(dependency=name), counted) for name, counted in totals.items() if counted.any]
        return tuple((known + added)[:MAX_CALL_LOADS])

    def allowance(self, part: DependencyRetries, now: float) -> int:
        """The most retries of a call to the dependency now."""
        now_known = self.capacity(part.name)
        return allowance(
            closed=now_known.closed,
            mean_wait_s=now_known.mean_wait_s,
            saturation=now_known.saturation,
            error_rate=part.errors.rate(now),
        )

    def may_resume(self, part: DependencyRetries) -> bool:
        """Whether a retry that has waited may still be made: not while open, queued or saturated."""
        return self.allowance(part, self.clock()) > 0

    def observes(self) -> bool:
        """The budget counts, but refuses nothing."""
        protection = self._protection()
        until_us = protection.observe.retry_until_us if protection is not None else 0
        return until_us > 0 and self._now_us() < until_us

    def floor_per_s(self, dependency: str, retry: Retry, now: float) -> float:
        """Retries per second besides those that the calls allow."""
        floor = min(retry.floor_milli / 1000, self._per_s() / max(1, self._live_servers()))
        if now < self._caps_until and (cap := self._caps.get(dependency)) is not None:
            floor = min(floor, cap / 1000)
        return floor

    def withdraw(
        self, part: DependencyRetries, retry: Retry, now: float, *, troubled: bool
    ) -> Withdrawal | None:
        """Take a retry from the dependency's budget and from the process's. Under the lock."""
        floor = self.floor_per_s(part.name, retry, now)
        taken = part.budget.withdraw(now, retry, floor, troubled=troubled)
        if taken is not None and not self._process.withdraw(now, self._per_s()):
            part.budget.give_back(now, taken)
            return None
        return taken

    def give_back(self, part: DependencyRetries, taken: Withdrawal) -> None:
        """A retry that was allowed is not made. Under the lock."""
        part.budget.give_back(self.clock(), taken)
        self._process.give_back(taken)

    def _per_s(self) -> int:
        protection = self._protection()
        return protection.retries_per_s if protection is not None else 10


def _with(load: CallLoad, totals: CallTotals) -> CallLoad:
    return replace(
        load,
        first_calls=totals.first_calls,
        retries=totals.retries,
        helped=totals.helped,
        no_budget=totals.no_budget,
        exhausted=totals.exhausted,
        observed=load.observed + totals.observed,
        fallbacks=totals.fallbacks,
        cached=totals.cached,
        fallback_failures=totals.fallback_failures,
    )
