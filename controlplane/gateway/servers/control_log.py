"""Each change of a control decision, once, with its inputs: a line of the log and a count.

Pods decide to shed, and log it themselves; the gateway logs it too, because the log of a pod may be lost with
the pod. A fleet of thousands can change together, so that lines are bounded. Counts are not.
"""

from collections import Counter
from collections.abc import Mapping

import structlog

from controlplane.gateway.wire.tokens import Allowance
from fuseboard.contract.load import PodLoad
from fuseboard.contract.sync import SyncRequest
from fuseboard.contract.words import LoadLevel

#: Lines per second of one environment, and at once.
LINES_PER_S = 2.0
LINES_AT_ONCE = 50
#: The cap of a dependency follows its calls. It is logged again after this time at the earliest...
CAP_AGAIN_S = 10.0
#: ...and only if it is this much different, in percent.
CAP_DIFFERS_PERCENT = 25

_IDLE = PodLoad()

log = structlog.get_logger(__name__)


class ControlLog:
    """The log of one environment."""

    def __init__(self, environment: str) -> None:
        self._environment = environment
        #: Pods that changed their level, by the level that they have since then.
        self.levels: Counter[str] = Counter()
        #: Pods that became unready because of pressure, and ready again.
        self.unready = self.ready = 0
        #: Changes of retry caps.
        self.caps = 0
        self._lines = Allowance(rate_per_s=LINES_PER_S, burst=LINES_AT_ONCE)
        self._left_out = 0
        #: Dependency -> its cap as the log has it, and when that was logged.
        self._capped: dict[str, tuple[int | None, float]] = {}

    def note_load(self, last: SyncRequest, beat: SyncRequest, now: float) -> None:
        """``last`` is the heartbeat of this name before ``beat``."""
        was, load = last.load or _IDLE, beat.load or _IDLE
        if load.level is not was.level:
            self.levels[load.level.value] += 1
            self.write(
                "fleet.pod_level",
                now,
                calm=load.level is LoadLevel.NORMAL,
                level=load.level.value,
                before=was.level.value,
                **_inputs(beat, load),
            )
        if load.unready is not was.unready:
            self.unready += load.unready
            self.ready += not load.unready
            self.write(
                "fleet.pod_unready" if load.unready else "fleet.pod_ready",
                now,
                calm=not load.unready,
                **_inputs(beat, load),
            )

    def note_cap(self, dependency: str, cap: int | None, now: float, **inputs: float) -> None:
        """``None`` for no cap: the pod's own bound is enough."""
        if dependency not in self._capped and cap is None:
            return
        before, logged_at = self._capped.get(dependency, (None, float("-inf")))
        if now - logged_at < CAP_AGAIN_S or not _differs(before, cap):
            return
        self._capped[dependency] = cap, now
        self.caps += 1
        self.write(
            "fleet.retry_cap", now, calm=cap is None, dependency=dependency, cap=cap, before=before, **inputs
        )

    def keep_caps(self, configured: Mapping[str, int]) -> None:
        """Forget dependencies that have no retries any more."""
        for name in self._capped.keys() - configured.keys():
            del self._capped[name]

    def write(self, event: str, now: float, *, calm: bool = False, **fields: object) -> None:
        """Write a line, unless there were too many: the next one says how many were left out."""
        if self._lines.take(now):
            self._left_out += 1
            return
        if self._left_out:
            fields["left_out"], self._left_out = self._left_out, 0
        (log.info if calm else log.warning)(event, environment=self._environment, **fields)


def _differs(before: int | None, cap: int | None) -> bool:
    if before is None or cap is None:
        return before is not cap
    return abs(cap - before) * 100 > CAP_DIFFERS_PERCENT * before


def _inputs(beat: SyncRequest, load: PodLoad) -> dict[str, object]:
    """The figures by which the pod decided."""
    return {
        "service": beat.service,
        "server": beat.server,
        "pressure": load.pressure / 1000,
        "cause": load.cause,
        "cpu": load.cpu,
        "memory": load.memory,
        "lag_ms": load.lag_ms,
        "waiting": load.waiting,
        "p95_ms": load.p95_ms,
        "asks_unready": load.asks_unready,
    }
