"""The content of the pages of backlogs: depth, wait, dead jobs and workers, the fullest first."""

from dataclasses import dataclass
from math import ceil

from controlplane.alerts.rules.thresholds import BACKLOG_SHARE
from controlplane.backlogs.figures import RATES_OVER_S, BacklogSeen
from controlplane.status.backlogs import BacklogStatus

#: State -> class, and words.
_WORDS = {
    "unknown": ("st-stale", "Unknown"),
    "full": ("st-open", "Full, refuses jobs"),
    "untaken": ("st-warn", "No worker takes jobs"),
    "stopped": ("st-half", "Waits for the breaker"),
    "paused": ("st-half", "Paused by a limit of 0"),
    "working": ("st-closed", "Workers have jobs"),
    "waiting": ("st-closed", "Waits to be admitted"),
    "dead": ("st-warn", "Only dead jobs"),
    "empty": ("st-closed", "Empty"),
}
#: A worker asked within this time: it is there. An idle one asks about once per second.
_PRESENT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class BacklogRow:
    status: BacklogStatus
    rates_over_s: int = int(RATES_OVER_S)

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def seen(self) -> BacklogSeen:
        return self.status.seen

    @property
    def face(self) -> tuple[str, str]:
        calm = self.status.state in ("working", "waiting")
        return ("st-warn", "Nearly full") if self.near and calm else _WORDS[self.status.state]

    @property
    def css(self) -> str:
        return self.face[0]

    @property
    def words(self) -> str:
        return self.face[1]

    @property
    def by_bytes(self) -> bool:
        """Whether its payloads, and not its jobs, are nearer to their bound."""
        seen = self.seen
        return seen.figures.bytes / seen.max_bytes > seen.figures.jobs / seen.max_jobs

    @property
    def stale(self) -> bool:
        return not self.status.fresh

    @property
    def near(self) -> bool:
        return self.status.share > BACKLOG_SHARE

    @property
    def percent(self) -> int:
        """Rounded up while it is not full, so that one job is not 0 %."""
        share = self.status.share
        return min(99, ceil(share * 100)) if share < 1 else 100

    @property
    def hot(self) -> bool:
        return self.near or self.status.state in ("full", "untaken") or self.seen.figures.dead > 0

    @property
    def workers(self) -> str:
        """Whether a worker asks, in words."""
        asked_s = self.seen.asked_s
        if asked_s is None:
            return "none yet"
        if asked_s <= _PRESENT_S:
            return "asking"
        # Workers that all have a job do not ask.
        return "busy" if self.seen.figures.held else f"asked {wait_words(asked_s)} ago"

    @property
    def wait(self) -> str:
        return wait_words(self.seen.waiting_s) if self.seen.figures.ready else ""


def wait_words(seconds: float) -> str:
    """A duration in its largest unit: ``45 s``, ``12 min``, ``3 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
