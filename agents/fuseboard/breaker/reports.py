"""Outcomes on their way to Redis: batched per dependency and generation, urgent ones at once."""

import asyncio
import random
from collections.abc import Callable
from time import monotonic

from fuseboard.breaker.fleet_breaker import FleetBreaker, UncountedSuccesses
from fuseboard.breaker.pending_report import PendingReport
from fuseboard.contract import keys
from fuseboard.contract.policy import Tuning
from fuseboard.contract.scripts import REPORT
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import ConnectionLostError, Reply, Store, Word

#: Failures and results of probes are collected for this time.
URGENT_S = 0.005


class Reports:
    def __init__(self, *, store: Store, health: StoreHealth, tuning: Callable[[], Tuning]) -> None:
        self._store = store
        self._health = health
        self._tuning = tuning
        self._breakers: dict[str, FleetBreaker] = {}
        self._tallies: list[UncountedSuccesses] = []
        # Kept with its time: a handle of uvloop does not know it when the timer is due at once.
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def add(self, breaker: FleetBreaker, *, urgent: bool) -> None:
        """Send the pending outcomes of ``breaker`` soon."""
        self._breakers[breaker.name] = breaker
        breaker.scheduled = True
        loop = asyncio.get_running_loop()
        due = loop.time() + (URGENT_S if urgent else self._tuning().report_interval_ms / 1000)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._timer, self._due = loop.call_at(due, self.flush), due

    def tally(self, tally: UncountedSuccesses) -> None:
        """Count a success with the others, with the next report."""
        tally.scheduled = True
        self._tallies.append(tally)
        self.add(tally.breaker, urgent=False)
        if tally.generation == tally.breaker.generation:
            self.send_first_success(tally.breaker)

    def send_first_success(self, breaker: FleetBreaker) -> None:
        """A success of this generation is pending. The first one of a window is sent now, not with the next
        batch.

        A breaker trips for the fleet only if enough pods saw failures, of those with outcomes. Failures are
        sent nearly at once. If successes always came later, the failures of one bad pod would be the only
        outcomes that Redis knows after a quiet time.
        """
        interval_s = self._tuning().report_interval_ms / 1000
        if (
            self._health.usable
            and breaker.needs_immediate_report(interval_s)
            and self._store.serves(breaker.guard_keys[0])
        ):
            # Only this dependency: the batches of the others are not due.
            tallies, self._tallies = self._tallies, []
            for tally in tallies:
                if tally.breaker is breaker:
                    tally.scheduled = False
                    tally.count()
                else:
                    self._tallies.append(tally)
            self._breakers.pop(breaker.name, None)
            self._send(breaker)

    def flush(self) -> None:
        """Send all pending outcomes now. Drop them when Redis is unavailable: its breakers decide nothing
        then.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tallies, self._tallies = self._tallies, []
        for tally in tallies:
            tally.scheduled = False
            tally.count()
            self._breakers[tally.breaker.name] = tally.breaker
        breakers, self._breakers = self._breakers, {}
        for breaker in breakers.values():
            self._send(breaker)

    def _send(self, breaker: FleetBreaker) -> None:
        reports = [(breaker.server, generation, outcomes) for generation, outcomes in breaker.pending.items()]
        breaker.pending.clear()
        breaker.scheduled = False
        if breaker.witnessed:
            reports += [
                (witness, generation, outcomes)
                for (generation, witness), outcomes in breaker.witnessed.items()
            ]
            breaker.witnessed.clear()
            # Redis must know who has outcomes without a failure before it judges those who have failures.
            reports.sort(key=_has_failures)
        breaker.local.fold(breaker.dependency.breaker)
        if not self._health.usable:
            return
        for witness, generation, outcomes in reports:
            breaker.note_sent(generation, outcomes)
            arguments = _arguments(breaker, witness, generation, outcomes)
            self._store.run(REPORT, breaker.report_keys, arguments, self._answered(breaker, monotonic()))

    def _answered(self, breaker: FleetBreaker, sent_at: float) -> Callable[[Reply], None]:
        def answered(reply: Reply) -> None:
            if isinstance(reply, list) and len(reply) == 8 and all(type(part) is int for part in reply):
                self._health.answered(reply[4])
                breaker.reported(reply, self._health.decided_at(reply[4], sent_at))
                return
            breaker.report_failed()
            if not isinstance(reply, ConnectionLostError):  # that was counted when the connection broke
                self._health.failed(f"report: {reply}")

        return answered


def _has_failures(report: tuple[str, int, PendingReport]) -> bool:
    _, _, outcomes = report
    return outcomes.failure + outcomes.slow > 0


def _arguments(
    breaker: FleetBreaker, witness: str, generation: int, pending: PendingReport
) -> tuple[Word, ...]:
    """The arguments of ``report.lua``; see there."""
    policy = breaker.dependency.breaker
    counted = (pending.ok, pending.failure, pending.slow, pending.tail)
    conditions = (
        policy.consecutive_failures,
        policy.failure_percent,
        policy.slow_percent,
        policy.minimum_calls,
        policy.window_s,
        policy.minimum_servers,
    )
    times = (
        policy.open_ms * 1000,
        policy.open_max_ms * 1000,
        policy.successes_to_close,
        random.randint(0, 100),
    )
    cooldown_us = pending.cooldown_ms * 1000
    probes = tuple(part for probe in pending.probes for part in probe)
    where = (keys.breaker_channel(breaker.environment), breaker.name)
    by_calls = ("window_calls", policy.window_calls) if policy.window_calls else ()
    return (
        witness,
        generation,
        *counted,
        *conditions,
        *times,
        cooldown_us,
        *where,
        *by_calls,
        *probes,
    )
