"""The gate of one dependency: what this server knows of its breaker, and what it has yet to report."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from time import monotonic

from fuseboard.admission.limits import script_arguments
from fuseboard.admission.local_breaker import LocalBreaker
from fuseboard.admission.question import ADMITS, BYPASS, FORCED_OPEN, OPEN, PROBE_BUSY, PROBES, Question
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import BreakerState, Outcome, OverrideMode, Reason
from fuseboard.store.connection import Word

#: A refusal for busy probes is remembered this long at most: a slot may be free any moment.
PROBE_BUSY_MEMORY_S = 0.1

_STATE_OF_VERDICT = {
    ADMITS: BreakerState.CLOSED,
    PROBES: BreakerState.HALF_OPEN,
    OPEN: BreakerState.OPEN,
    PROBE_BUSY: BreakerState.HALF_OPEN,
}
_STATES = (BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN)


@dataclass(slots=True)
class PendingReport:
    """Outcomes of one generation, not sent yet."""

    ok: int = 0
    failure: int = 0
    slow: int = 0
    #: Failures since the last success among them.
    tail: int = 0
    probes: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Denial:
    """A refusal that holds until an exact time, so that Redis need not be asked again before."""

    reason: Reason
    rule: str
    until: float
    #: Calls of this cost or more are refused.
    cost: int = 1


class Gate:
    """A dependency's domain. ``on_change`` is called when its state is no longer what was last seen."""

    def __init__(
        self,
        *,
        environment: str,
        server: str,
        dependency: Dependency,
        on_change: Callable[[], None],
        report_soon: Callable[["Gate"], None],
    ) -> None:
        self.name = dependency.name
        self.gathering: Question | None = None
        self.in_flight: Question | None = None
        self.denial: Denial | None = None
        self.local = LocalBreaker()
        self.pending: dict[int, PendingReport] = {}
        self._environment = environment
        self._server = server
        self._on_change = on_change
        self._report_soon = report_soon
        # What was last learned of the fleet's breaker.
        self.state = BreakerState.CLOSED
        self.generation = 0
        self.since = monotonic()
        #: When the open state may be probed; monotonic seconds.
        self.until = 0.0
        self.window = (0, 0, 0)
        self.part = 1.0
        self.adopt(dependency)

    def adopt(self, dependency: Dependency) -> None:
        """Decide by this policy from now on."""
        before = getattr(self, "dependency", dependency)
        self.dependency = dependency
        named = (keys.override, keys.breaker, keys.outcomes, keys.evidence, keys.transitions)
        self.guard_keys = tuple(key(self._environment, self.name).encode() for key in named)
        self.limits = tuple(limit for limit in dependency.vendor_limits if limit.limit > 0)
        self._limit_keys = tuple(
            keys.vendor_limit(self._environment, self.name, limit.name).encode() for limit in self.limits
        )
        self.ramp(self.part)
        self.denial = None
        if dependency.reset_revision != before.reset_revision:
            self.local.reset()
            self._see(BreakerState.CLOSED, self.generation, 0.0)
        elif dependency.override != before.override:
            # Whoever held it has changed their mind: what was learned before says nothing now.
            self.local.reset()
            self._on_change()

    def ramp(self, part: float) -> None:
        """Ask Redis for this part of every limit."""
        self.part = part
        self._limit_arguments = tuple(
            number for limit in self.limits for number in script_arguments(limit, part)
        )

    # What the batcher needs

    def script_keys(self) -> tuple[bytes, ...]:
        return self.guard_keys + self._limit_keys

    def script_head(self, token: str) -> tuple[Word, ...]:
        policy = self.dependency.breaker
        # Open times are lengthened by up to a tenth of jitter.
        open_max_us = policy.open_max_ms * 1100
        lease_us = policy.probe_lease_ms * 1000
        guard = (1, policy.probes, lease_us, open_max_us, token, self._server)
        return (*guard, len(self.limits), *self._limit_arguments)

    def limit_count(self) -> int:
        return len(self.limits)

    def learned(self, verdict: int, generation: int, wait_us: int) -> None:
        now = monotonic()
        if verdict == BYPASS:
            return
        if verdict == FORCED_OPEN:
            self.denial = Denial(Reason.FORCED_OPEN, self.name, now + wait_us / 1_000_000)
            return
        if verdict == OPEN:
            self.denial = Denial(Reason.BREAKER_OPEN, self.name, now + wait_us / 1_000_000)
        elif verdict == PROBE_BUSY:
            self.denial = Denial(
                Reason.PROBE_BUSY, self.name, now + min(wait_us / 1_000_000, PROBE_BUSY_MEMORY_S)
            )
        self._see(_STATE_OF_VERDICT[verdict], generation, now + wait_us / 1_000_000)

    def came_late(self, generation: int, tokens: tuple[str, ...]) -> None:
        pending = self.pending.setdefault(generation, PendingReport())
        pending.probes.extend((token, 0) for token in tokens)
        self._report_soon(self)

    # Outcomes

    def record(self, outcome: Outcome, generation: int, token: str) -> None:
        """Keep an outcome for the fleet's breaker, if that admitted the call."""
        if generation == 0:
            return
        pending = self.pending.setdefault(generation, PendingReport())
        if token:
            pending.probes.append((token, {Outcome.NEUTRAL: 0, Outcome.OK: 1}.get(outcome, 2)))
        elif outcome is Outcome.FAILURE:
            pending.failure += 1
            pending.tail += 1
        elif outcome is not Outcome.NEUTRAL:
            pending.ok += outcome is Outcome.OK
            pending.slow += outcome is Outcome.SLOW
            pending.tail = 0

    def report_arguments(self, generation: int, pending: PendingReport, jitter: int) -> tuple[Word, ...]:
        policy = self.dependency.breaker
        counted = (pending.ok, pending.failure, pending.slow, pending.tail)
        conditions = (
            policy.consecutive_failures,
            policy.failure_percent,
            policy.slow_percent,
            policy.minimum_calls,
            policy.window_s,
            policy.minimum_servers,
        )
        times = (policy.open_ms * 1000, policy.open_max_ms * 1000, policy.successes_to_close, jitter)
        probes = tuple(part for probe in pending.probes for part in probe)
        return (self._server, generation, *counted, *conditions, *times, *probes)

    def reported(self, reply: list[int]) -> None:
        """Take in what ``report.lua`` answered."""
        _, state, generation, remaining_us, _, calls, failures, consecutive = reply
        now = monotonic()
        if calls:
            self.window = (calls, failures, consecutive)
        if generation < self.generation:
            return
        self._see(_STATES[state], generation, now + remaining_us / 1_000_000)
        if self.state is BreakerState.OPEN and remaining_us:
            self.denial = Denial(Reason.BREAKER_OPEN, self.name, self.until)

    def _see(self, state: BreakerState, generation: int, until: float) -> None:
        changed = state is not self.state or generation != self.generation
        if changed:
            self.since = monotonic()
            # The fleet has decided something newer than what this server alone concluded.
            self.local.reset()
            if state is BreakerState.CLOSED:
                self.window = (0, 0, 0)
        self.state, self.generation = state, generation
        self.until = until if state is BreakerState.OPEN else 0.0
        if changed:
            self._on_change()

    def stand_alone(self) -> None:
        """Redis is gone: go on from the last shared state with this server's own breaker."""
        if self.state is BreakerState.OPEN and self.local.state is BreakerState.CLOSED:
            self.local.open_until(self.until)
        elif self.state is BreakerState.HALF_OPEN and self.local.state is BreakerState.CLOSED:
            self.local.open_until(monotonic())
        self.pending.clear()
        self.denial = None

    def view(self, override: OverrideMode | None, *, local: bool) -> BreakerView:
        """What the next beat says of it."""
        now = monotonic()
        alone = local or (self.state is BreakerState.CLOSED and self.local.state is not BreakerState.CLOSED)
        state, since, until = self.state, self.since, self.until
        if alone:
            state, since, until = self.local.state, self.local.since, self.local.until
        remaining = max(0.0, until - now) if state is BreakerState.OPEN else 0.0
        calls, failures, consecutive = self.window
        return BreakerView(
            dependency=self.name,
            state=state,
            generation=self.generation,
            for_ms=int((now - since) * 1000),
            remaining_ms=ceil(remaining * 1000),
            override=override,
            local=alone,
            window_calls=calls,
            window_failures=failures,
            consecutive_failures=consecutive,
        )
