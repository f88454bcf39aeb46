"""This pod's own breaker of one dependency.

It always runs. In shared mode it protects this pod when only its own calls fail: the fleet's breaker
does not trip then, because one bad node must not stop a vendor for all. In local mode it is the only
breaker. Its conditions and times are those of the shared policy, with one probe at a time, because a
pod does not know the probes of others.

docs/breakers.md has the table of all states.
"""

import random
from collections import deque
from time import monotonic

from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.words import BreakerState, Outcome


class LocalBreaker:
    __slots__ = (
        "_buckets",
        "_totals",
        "_unfolded",
        "attempt",
        "consecutive",
        "figures",
        "generation",
        "probing_until",
        "since",
        "state",
        "successes",
        "until",
    )

    def __init__(self) -> None:
        #: Increases when the breaker opens or closes, but not when it becomes half-open, so probes keep the
        #: generation of the opening. Also increases when a probe is given up: its late outcome is not that
        #: of the next one.
        self.generation = 0
        #: Calls, failures and slow calls in the window, and failures in a row, when it last tripped.
        #: A failed probe keeps them.
        self.figures = (0, 0, 0, 0)
        self.reset()

    def reset(self) -> None:
        """Closed, with nothing counted."""
        self.generation += 1
        self.state = BreakerState.CLOSED
        self.since = monotonic()
        self.until = 0.0
        self.attempt = 0
        self.consecutive = 0
        self.successes = 0
        #: While half-open: when the one probe in progress is given up.
        self.probing_until = 0.0
        #: (second, calls, failures, slow), oldest first; and the sums of all of them.
        self._buckets: deque[list[int]] = deque()
        self._totals = [0, 0, 0]
        self._unfolded = 0

    def take_over(self, until: float, policy: BreakerPolicy) -> None:
        """Continue from the fleet's breaker: open until then (monotonic seconds), or to be probed now.

        All pods know the same moment. Each waits up to a tenth of the open time longer, so that their
        probes do not come together.
        """
        self.generation += 1
        self._move(BreakerState.OPEN)
        self.until = max(until, monotonic()) + policy.open_ms / 1000 * random.uniform(0.0, 0.1)

    def wait(self, policy: BreakerPolicy) -> float:
        """Seconds until a call may be made; 0 when one may be made now.

        When the open time is over, the caller becomes the probe.
        """
        if self.state is BreakerState.CLOSED:
            return 0.0
        now = monotonic()
        if self.state is BreakerState.OPEN:
            if now < self.until:
                return self.until - now
            self._move(BreakerState.HALF_OPEN)
        if now < self.probing_until:
            return self.probing_until - now
        if self.probing_until:
            self.generation += 1
        self.probing_until = now + policy.probe_lease_ms / 1000
        return 0.0

    def renew_probe(self, generation: int, policy: BreakerPolicy) -> bool:
        """The probe of this generation runs on. Whether it is still the probe."""
        is_probe = (
            self.state is BreakerState.HALF_OPEN and self.generation == generation and self.probing_until > 0
        )
        if is_probe:
            self.probing_until = monotonic() + policy.probe_lease_ms / 1000
        return is_probe

    def record(self, outcome: Outcome, policy: BreakerPolicy) -> None:
        """Count the outcome of a call that this pod made."""
        if self.state is BreakerState.HALF_OPEN:
            self._record_probe(outcome, policy)
            return
        if self.state is BreakerState.OPEN or outcome is Outcome.NEUTRAL:
            return
        if outcome is Outcome.OK:
            # Nearly every call ends here. It is counted with the next report, or with the next failure.
            self.consecutive = 0
            self._unfolded += 1
            return
        # A slow success neither adds to the row of failures nor ends it.
        self.consecutive += outcome is Outcome.FAILURE
        self.fold(policy)
        self._count(policy, 1, int(outcome is Outcome.FAILURE), int(outcome is Outcome.SLOW))
        calls, failures, slow = self._judged(policy)
        enough = calls >= policy.minimum_calls
        if (
            (policy.consecutive_failures and self.consecutive >= policy.consecutive_failures)
            or (enough and failures * 100 >= policy.failure_percent * calls)
            or (enough and slow * 100 >= policy.slow_percent * calls)
        ):
            self.figures = (calls, failures, slow, self.consecutive)
            self._open(policy)

    def count_successes(self, calls: int) -> None:
        """Count successful calls while this breaker was closed."""
        if self.state is BreakerState.CLOSED:
            self.consecutive = 0
            self._unfolded += calls

    def _record_probe(self, outcome: Outcome, policy: BreakerPolicy) -> None:
        self.probing_until = 0.0
        if outcome in (Outcome.FAILURE, Outcome.SLOW):
            self._open(policy)
        elif outcome is Outcome.OK:
            self.successes += 1
            if self.successes >= policy.successes_to_close:
                self.reset()

    def fold(self, policy: BreakerPolicy) -> None:
        """Count the successes since the last time, which is at most a report interval ago."""
        if self._unfolded:
            self._count(policy, self._unfolded, 0, 0)
            self._unfolded = 0

    def _count(self, policy: BreakerPolicy, calls: int, failures: int, slow: int) -> None:
        second = int(monotonic())
        buckets, totals = self._buckets, self._totals
        if not buckets or buckets[-1][0] != second:
            buckets.append([second, 0, 0, 0])
            while buckets[0][0] <= second - policy.window_s:
                old = buckets.popleft()
                for place in range(3):
                    totals[place] -= old[place + 1]
        newest = buckets[-1]
        for place, amount in enumerate((calls, failures, slow)):
            newest[place + 1] += amount
            totals[place] += amount

    def _judged(self, policy: BreakerPolicy) -> list[int]:
        """Calls, failures and slow calls that the ratios are about."""
        if not policy.window_calls:
            return self._totals
        sums = [0, 0, 0]
        for bucket in reversed(self._buckets):
            for place in range(3):
                sums[place] += bucket[place + 1]
            if sums[0] >= policy.window_calls:
                break
        return sums

    def _open(self, policy: BreakerPolicy) -> None:
        length = min(policy.open_max_ms, policy.open_ms * 2 ** min(self.attempt, 20)) / 1000
        self.attempt += 1
        self.generation += 1
        self._move(BreakerState.OPEN)
        self.until = monotonic() + length * random.uniform(1.0, 1.1)

    def _move(self, state: BreakerState) -> None:
        self.state = state
        self.since = monotonic()
        self.consecutive = self.successes = 0
        self.probing_until = 0.0
        self._buckets.clear()
        self._totals = [0, 0, 0]
        self._unfolded = 0
