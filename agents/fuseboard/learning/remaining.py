"""Charges in our own counters what others have spent of a vendor's limit.

Others may use the same key: another cluster, a script, a person. No counter of ours sees them, but each
answer of the vendor says what is left after them. ``lua/settle.lua`` charges the difference. It only ever
lowers what is left here, so a configured limit is never exceeded because a vendor reports more.
"""

import logging
from collections import deque
from collections.abc import Mapping
from threading import Lock
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from fuseboard.calling.vendor_codes import NEVER_AGAIN, NEVER_FITS
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from fuseboard.decision import Permit
from fuseboard.learning.headers import StatedLimit, is_cached, stated_limits

log = logging.getLogger("fuseboard.limits")

#: A limit is another one if its window is this many times longer or shorter. Rounded figures differ less.
SAME_WINDOW = 1.5
#: Where the vendor names no window, its limit is ours if it is at most this many times larger or smaller.
SAME_LIMIT = 2
#: A vendor that refuses a call while it reports this part of each limit, in percent, contradicts itself.
AMPLE_PERCENT = 10
#: After more contradictions than this within ``CONTRADICTED_S``, what the vendor has left is not used for
#: ``IGNORED_S``.
MAX_CONTRADICTIONS = 3
CONTRADICTED_S = 600.0
IGNORED_S = 3_600.0

_COUNTED = (Algorithm.SLIDING_WINDOW, Algorithm.TOKEN_BUCKET)


class Trust:
    """Whether the figures of one dependency are used. For any thread."""

    def __init__(self, dependency: str) -> None:
        self._dependency = dependency
        self._contradictions: deque[float] = deque(maxlen=MAX_CONTRADICTIONS + 1)
        self._lock = Lock()
        self.ignored_until = 0.0

    def contradicted(self, now: float) -> None:
        """The vendor has refused a call for a limit of which it reports enough."""
        with self._lock:
            times = self._contradictions
            times.append(now)
            ignores = len(times) > MAX_CONTRADICTIONS and now - times[0] < CONTRADICTED_S
            if ignores:
                times.clear()
                self.ignored_until = now + IGNORED_S
        if ignores:
            log.warning(
                "limits.remaining_ignored dependency=%s: %d answers of status 429 reported that enough is"
                " left, so what this vendor reports as left is not used for %d min",
                self._dependency,
                MAX_CONTRADICTIONS + 1,
                IGNORED_S / 60,
            )


class Remaining:
    """The reports of all vendors to one agent."""

    def __init__(self) -> None:
        self._trust: dict[str, Trust] = {}

    def record(
        self,
        agent: Any,
        permit: Permit,
        status: int,
        headers: Mapping[str, str],
        *,
        code: str = "",
        elapsed_s: float,
    ) -> None:
        """An answer, after ``elapsed_s``. ``code``: the vendor's word for a refusal. For any thread."""
        snapshot = _snapshot_of(agent)
        limits = _limits_of(snapshot, permit.dependency)
        if snapshot is None or not limits or permit.generation == 0:
            return  # nothing is counted, or this pod decided alone
        believed_s = snapshot.tuning.remaining_for_ms / 1000 - elapsed_s
        if believed_s <= 0 or not (stated := stated_limits(headers)) or is_cached(headers):
            return
        now = monotonic()
        trust = self._trust.get(permit.dependency)
        if trust is None:
            trust = self._trust.setdefault(permit.dependency, Trust(permit.dependency))
        if status == 429 and code not in NEVER_AGAIN and code != NEVER_FITS and all(map(_is_ample, stated)):
            trust.contradicted(now)
        if now >= trust.ignored_until and (left := left_of(limits, stated)):
            agent.note_left(permit, left, believed_s)


def left_of(limits: tuple[Limit, ...], stated: tuple[StatedLimit, ...]) -> dict[str, tuple[int, int]]:
    """By name of our limits: the vendor's figures of what is left, and of how much there is.

    Headers about no limit of ours are left out.
    """
    left: dict[str, tuple[int, int]] = {}
    for one in stated:
        for limit in limits:
            if limit.measure == one.measure and _is_about(one, limit):
                found = (one.remaining, one.limit)
                left[limit.name] = min(found, left.get(limit.name, found))
    return left


def _is_about(one: StatedLimit, limit: Limit) -> bool:
    """A vendor may have several limits of one measure, such as one per minute and one per day."""
    if one.window_ms is not None:
        return one.window_ms / SAME_WINDOW <= limit.window_ms <= one.window_ms * SAME_WINDOW
    if one.reset_s is not None and one.reset_s * 1000 > limit.window_ms * SAME_WINDOW:
        return False  # a limit of a longer window: all of ours is there again earlier
    return one.limit / SAME_LIMIT <= limit.limit <= one.limit * SAME_LIMIT


def _is_ample(one: StatedLimit) -> bool:
    return one.remaining * 100 >= one.limit * AMPLE_PERCENT


def _limits_of(snapshot: Snapshot | None, dependency: str) -> tuple[Limit, ...]:
    """The limits of the vendor that refill with time. Slots and calendar budgets keep their own books."""
    known = snapshot.dependency(dependency) if snapshot is not None else None
    if known is None:
        return ()
    return tuple([limit for limit in known.vendor_limits if limit.algorithm in _COUNTED and not limit.shadow])


def _snapshot_of(agent: Any) -> Snapshot | None:
    # The agent of an application's test has no configuration.
    configuration = getattr(agent, "configuration", None)
    return configuration.snapshot if configuration is not None else None


_of_agents: WeakKeyDictionary[object, Remaining] = WeakKeyDictionary()


def remaining_of(agent: object) -> Remaining:
    """The one of this agent. All its clients share it."""
    return _of_agents.setdefault(agent, Remaining())
