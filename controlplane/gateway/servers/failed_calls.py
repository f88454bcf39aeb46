"""How calls of the fleet failed: the newest failed calls of each dependency, and their kinds lately.

Pods report totals by kind and their last few failed calls. Both are bounded here, whatever pods report.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from fuseboard.contract.failures import OTHER_KINDS, UNKNOWN_KIND, DependencyFailures, is_kind, is_trace
from fuseboard.contract.sync import SyncRequest

#: Dependencies of one environment. Further ones are invented, or lists of an attacker.
MAX_DEPENDENCIES = 1_000
#: Failed calls of one dependency, and kinds in one of its steps.
MAX_CALLS = 20
MAX_KINDS = 20
#: Counted in steps of five minutes, for an hour.
STEP_S = 300
STEPS = 12
#: A process this young is counted from its start if it is heard for the first time.
YOUNG_MS = 15_000
#: Rows that are written together, and the time between two rows of one dependency.
ROWS_AT_ONCE = 20
AGAIN_S = 2.0


@dataclass(slots=True)
class _Failures:
    """Failures of one dependency. A call is: unix seconds, pod, boot, number, kind, outcome, trace."""

    calls: deque[list[Any]] = field(default_factory=lambda: deque(maxlen=MAX_CALLS))
    #: Start of a step in unix seconds -> failed calls by kind.
    kinds: dict[int, Counter[str]] = field(default_factory=dict)
    written_at: float = float("-inf")


class FailedCalls:
    """Failed calls of the pods that one gateway hears in one environment."""

    def __init__(self) -> None:
        self._known: dict[str, _Failures] = {}
        self._dirty: dict[str, None] = {}
        #: Since when calls are counted (unix); ``None`` before the first heartbeat.
        self.since: float | None = None
        #: Dependencies that found no room.
        self.left_out = 0

    def record(self, last: SyncRequest, beat: SyncRequest, wall: float, *, first: bool) -> None:
        """A heartbeat that is not stale, and the one before it; with ``first``, that one is not known."""
        if self.since is None:
            self.since = wall
        if not beat.failures:
            return
        same = beat.boot == last.boot and not first
        before = {one.dependency: one for one in last.failures} if same else {}
        # Without a heartbeat to compare with, calls before now are not new.
        countable = (same and not last.cut) or beat.up_ms <= YOUNG_MS
        for one in beat.failures:
            was = before.get(one.dependency)
            if was is None and countable:
                was = DependencyFailures(dependency=one.dependency)
            self._add(one, was, beat, wall)

    def _add(
        self, now: DependencyFailures, was: DependencyFailures | None, beat: SyncRequest, wall: float
    ) -> None:
        failures = self._known.get(now.dependency)
        if failures is None:
            if len(self._known) >= MAX_DEPENDENCIES:
                self.left_out += 1
                return
            failures = self._known[now.dependency] = _Failures()
        # A call stays in the list of a pod for a while, so most are known.
        seen = max((call.number for call in was.last), default=0) if was is not None else 0
        for call in now.last:
            if call.number > seen:
                self._dirty[now.dependency] = None
                kind = _checked(call.kind)
                trace = call.trace if is_trace(call.trace) else ""
                at = round(wall - call.ago_ms / 1000, 3)
                failures.calls.append(
                    [at, beat.server, beat.boot[:8], call.number, kind, call.outcome.value, trace]
                )
        if was is not None:
            self._count(failures, was, now, wall)

    def _count(
        self, failures: _Failures, was: DependencyFailures, now: DependencyFailures, wall: float
    ) -> None:
        step = int(wall) // STEP_S * STEP_S
        counted = failures.kinds.setdefault(step, Counter())
        for kind, total in now.kinds.items():
            more = total - was.kinds.get(kind, 0)
            if more > 0:
                self._dirty[now.dependency] = None
                known = _checked(kind)
                if known not in counted and len(counted) >= MAX_KINDS:
                    known = OTHER_KINDS
                counted[known] += more
        for old in [old for old in failures.kinds if old <= step - STEPS * STEP_S]:
            del failures.kinds[old]

    def due(self, now: float) -> list[tuple[str, dict[str, Any]]]:
        """Dependencies with news and their documents, a few at a time; ``put_back`` what is not written."""
        found: list[tuple[str, dict[str, Any]]] = []
        for name in list(self._dirty):
            failures = self._known[name]
            if now - failures.written_at < AGAIN_S:
                continue
            del self._dirty[name]
            failures.written_at = now
            found.append((name, self._document(failures)))
            if len(found) >= ROWS_AT_ONCE:
                break
        return found

    def put_back(self, names: list[str]) -> None:
        for name in names:
            if name in self._known:
                self._dirty[name] = None

    def forget(self, name: str) -> None:
        """Postgres refuses what is known of this dependency: begin again."""
        self._known.pop(name, None)
        self._dirty.pop(name, None)

    def _document(self, failures: _Failures) -> dict[str, Any]:
        return {
            "since": self.since,
            "calls": sorted(failures.calls, key=lambda call: -float(call[0])),
            "kinds": [[step, dict(kinds)] for step, kinds in sorted(failures.kinds.items())],
        }


def _checked(kind: str) -> str:
    """A kind is a word. What a pod sends as a message is not stored."""
    return kind if is_kind(kind) else UNKNOWN_KIND
