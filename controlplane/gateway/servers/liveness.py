"""Whether a server is still there: arithmetic on one monotonic clock.

``online -> late -> unknown -> offline -> gone``. A server is late when one beat is overdue,
unknown when its lease is over, offline when two more leases have passed, and gone when it
left on purpose or a day has passed. Only a heartbeat leads back.

Losing sight of many servers at once says more about us than about them. So nobody is called
offline while more than 15 percent of ten or more servers fell silent within a minute, and
every pod's time starts again when the gateway restarts, or when it was suspended itself.
"""

from collections import deque
from dataclasses import dataclass

from controlplane.fleet.models import ServerState

#: The agent adds up to 20 percent to the interval that it gets, and the network adds some more.
JITTER = 1.2
TRAVEL_S = 0.5

LEASE_BEATS = 3
LEASE_GRACE_S = 2.0
#: Silent intervals, after the first, that make a pod offline.
OFFLINE_LEASES = 2
GONE_AFTER_S = 86_400.0

#: After a longer pause between two sweeps, the gateway itself did not run.
ASLEEP_S = 3.0

SILENT_WINDOW_S = 60.0
SILENT_SHARE = 0.15
SMALLEST_FLEET = 10
#: How long a loss is doubted, if it lasts.
FROZEN_AT_MOST_S = 900.0


def due_after(next_s: float) -> float:
    """Seconds after a heartbeat by which the next one is due."""
    return next_s * JITTER + TRAVEL_S


def lease_of(next_s: float) -> float:
    """Seconds after a heartbeat during which a pod counts as present."""
    return LEASE_BEATS * next_s + LEASE_GRACE_S


def state_after(silent_s: float, next_s: float) -> ServerState:
    """The state of a pod that sends heartbeats every ``next_s`` and was silent for ``silent_s``."""
    lease = lease_of(next_s)
    if silent_s <= due_after(next_s):
        return ServerState.ONLINE
    if silent_s <= lease:
        return ServerState.LATE
    if silent_s <= lease * (1 + OFFLINE_LEASES):
        return ServerState.UNKNOWN
    if silent_s <= GONE_AFTER_S:
        return ServerState.OFFLINE
    return ServerState.GONE


@dataclass
class SelfPreservation:
    """Whether the silence is believed. ``frozen_since`` is monotonic; ``None`` when it is."""

    frozen_since: float | None = None
    #: Counts of the last sweep, see ``observe``.
    silent: int = 0
    expected: int = 0
    #: When servers last fell silent, oldest first.
    _silenced: deque[float] | None = None

    @property
    def frozen(self) -> bool:
        return self.frozen_since is not None

    def observe(self, *, now: float, newly_silent: int, silent: int, expected: int) -> None:
        """Take in one sweep.

        ``newly_silent`` servers lost their lease since the last one; ``silent`` of the
        ``expected`` (neither offline nor gone) have none now.
        """
        self.silent, self.expected = silent, expected
        if self._silenced is None:
            self._silenced = deque()
        self._silenced.extend([now] * newly_silent)
        while self._silenced and now - self._silenced[0] > SILENT_WINDOW_S:
            self._silenced.popleft()
        if self.frozen_since is None:
            lost = min(len(self._silenced), silent)
            if expected >= SMALLEST_FLEET and lost > expected * SILENT_SHARE:
                self.frozen_since = now
        elif silent <= expected * SILENT_SHARE:
            self.frozen_since = None
        elif now - self.frozen_since >= FROZEN_AT_MOST_S:
            self.lift()

    def lift(self) -> None:
        """The fleet really is smaller: believe it, and count from here."""
        self.frozen_since = None
        if self._silenced is not None:
            self._silenced.clear()


class RecentMaximum:
    """The most of something over the last ten minutes, at least 1, in steps of 10 s."""

    WINDOW_S = 600.0
    STEP_S = 10.0

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        #: The maximum itself, which can be 0.
        self.counted = 0

    def add(self, now: float, value: int) -> int:
        """Take in a value at the monotonic time ``now``; the maximum with it."""
        begun = now - now % self.STEP_S
        if self._steps and self._steps[-1][0] == begun:
            value = max(value, self._steps.pop()[1])
        self._steps.append((begun, value))
        while self._steps[0][0] <= now - self.WINDOW_S - self.STEP_S:
            self._steps.popleft()
        self.counted = max(value for _, value in self._steps)
        return self.value

    @property
    def value(self) -> int:
        return self.counted or 1
