"""The thread that sends heartbeats: reports what this pod does, and passes on the answers.

It is a thread and not a task, so that a pod with a busy loop still counts as alive, and so that TLS,
JSON and disk never delay a decision. It shares nothing with the loop: ``LoopPort`` is the only way. It
is a daemon that is never joined at exit, so it never delays the process.
"""

import logging
import random
import threading
from collections.abc import Callable
from time import monotonic

from fuseboard.reporting.heartbeat import Exchange, FailedHeartbeatError, Gateway, HeartbeatFailure
from fuseboard.reporting.loop_port import LoopGoneError

logger = logging.getLogger("fuseboard.sync")

#: The least time between two heartbeats, however much changes.
MIN_GAP_S = 0.05
#: The interval until the gateway has set one, and without a gateway.
FIRST_PACE_S = 5.0
#: After a failure: full jitter between these, doubling up to the last. The last is also the cap of
#: Retry-After.
BACKOFF_S = (0.2, 1.0, 30.0)
#: The pause after 401 or 403.
REFUSED_PACE_S = 30.0
#: Failures in a row after which this pause begins: a gateway learns of a new token a moment after a pod does.
REFUSED_AFTER = 3


class SyncThread:
    """All its callbacks run in this thread; ``after_heartbeat`` also without a gateway."""

    def __init__(
        self,
        *,
        gateway: Gateway | None,
        receive: Callable[[Exchange], None],
        after_heartbeat: Callable[[], None],
        ended: Callable[[], None],
        rng: random.Random | None = None,
    ) -> None:
        self._gateway = gateway
        self._receive, self._after_heartbeat, self._ended = receive, after_heartbeat, ended
        self._rng = rng or random.Random()
        self._condition = threading.Condition()
        self._stopping = False
        self._soon_at: float | None = None
        self._due = 0.0
        self._last = 0.0
        self._failing: HeartbeatFailure | None = None
        self._attempt = 0
        #: Seconds between two heartbeats, as the gateway said. Each pause is jittered by 20 percent.
        self.pace_s = FIRST_PACE_S
        self.beats = 0
        self.failures = dict.fromkeys(HeartbeatFailure, 0)
        self._thread = threading.Thread(target=self._run, name="fuseboard-sync", daemon=True)

    # Called from any thread

    def start(self) -> None:
        self._thread.start()

    def heartbeat_soon(self, within_s: float = 0.0) -> None:
        """Send a heartbeat soon; many calls cause one. A gateway with problems still gets its pause."""
        at = monotonic() + self._rng.uniform(0, within_s)
        with self._condition:
            if self._soon_at is None or at < self._soon_at:
                self._soon_at = at
                self._condition.notify()

    def stop(self) -> None:
        """Sign off and end, in the background. ``ended`` is called when that is done."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    # The thread

    def _run(self) -> None:
        while not self._stopping:
            pace_s = self._send_heartbeat()
            self._last = monotonic()
            self._due = self._last + pace_s
            self._wait()
        self._leave()

    def _wait(self) -> None:
        with self._condition:
            while not self._stopping:
                due = self._due
                if self._soon_at is not None and self._failing is None:
                    due = min(due, max(self._soon_at, self._last + MIN_GAP_S))
                left = due - monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
            self._soon_at = None

    def _send_heartbeat(self) -> float:
        """Send one heartbeat, whatever happens. Returns the pause before the next one in seconds."""
        try:
            try:
                if self._gateway is not None:
                    exchange = self._gateway.send_heartbeat()
                    self.beats += 1
                    self.pace_s = exchange.response.next_ms / 1000
                    self._recovered()
                    self._receive(exchange)
            except FailedHeartbeatError as error:
                return self._failed(error)
            finally:
                self._after_heartbeat()
        except LoopGoneError as error:
            logger.debug("sync.no_loop: %s", error)
        except Exception:
            # A defect of the agent must not end the thread: the pod would look dead while it serves.
            logger.exception("sync.defect")
        return self.pace_s * self._rng.uniform(0.8, 1.2)

    def _failed(self, error: FailedHeartbeatError) -> float:
        self.failures[error.failure] += 1
        if self._failing is not error.failure:
            level = (
                logging.ERROR
                if error.failure in (HeartbeatFailure.REFUSED, HeartbeatFailure.WRONG)
                else logging.WARNING
            )
            logger.log(level, "sync.%s: %s; the current configuration still applies", error.failure, error)
        self._failing = error.failure
        if error.failure is HeartbeatFailure.REFUSED and self._attempt >= REFUSED_AFTER:
            return REFUSED_PACE_S * self._rng.uniform(0.8, 1.2)
        least, base, most = BACKOFF_S
        jittered = self._rng.uniform(least, min(most, base * 2 ** min(self._attempt, 10)))
        self._attempt += 1
        return max(min(error.retry_after_s, most), jittered)

    def _recovered(self) -> None:
        if self._failing is not None:
            logger.info("sync.recovered")
        self._failing, self._attempt = None, 0

    def _leave(self) -> None:
        try:
            if self._gateway is not None:
                self._gateway.leave()
        except (FailedHeartbeatError, LoopGoneError) as error:
            logger.debug("sync.not_left: %s", error)
        try:
            self._ended()
        except LoopGoneError as error:
            logger.debug("sync.no_loop: %s", error)
