"""Each backlog, and what it means together with its breaker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.backlogs.figures import BacklogSeen
from controlplane.status.breakers import BreakerStatus
from controlplane.status.facts import Facts

#: The worker reads backlogs each 2 s. Older figures say nothing about workers that ask.
FRESH_S = 30.0
#: A worker asks about once per second while it is idle. After this time without, it is worth a word.
QUIET_S = 10.0

#: States of a backlog; the first that is true counts.
BacklogState = Literal[
    "unknown", "full", "untaken", "stopped", "paused", "working", "waiting", "dead", "empty"
]


@dataclass(frozen=True, kw_only=True)
class BacklogStatus:
    seen: BacklogSeen
    breaker: BreakerStatus
    #: Since it was read.
    age_s: float

    @property
    def name(self) -> str:
        return self.seen.dependency

    @property
    def share(self) -> float:
        return self.seen.share

    @property
    def full(self) -> bool:
        return self.share >= 1

    @property
    def fresh(self) -> bool:
        return self.age_s <= FRESH_S

    @property
    def stopped(self) -> bool:
        """The breaker lets nothing through. Pods that know it do not ask for jobs."""
        return self.breaker.effective in ("open", "forced_open")

    @property
    def paused(self) -> bool:
        """A limit of 0 admits no call. Pods know it, and do not ask for jobs."""
        return self.breaker.dependency.paused

    @property
    def untaken_s(self) -> float:
        """The time since a job could be sent while no worker asks; 0 if that is not known."""
        return 0.0 if not self.fresh or self.stopped or self.paused else self.seen.untaken_s

    @property
    def state(self) -> BacklogState:
        figures = self.seen.figures
        if not self.fresh:
            return "unknown"
        if self.full:
            return "full"
        if self.untaken_s > QUIET_S:
            return "untaken"
        if figures.takeable and self.stopped:
            return "stopped"
        if figures.takeable and self.paused:
            return "paused"
        # Leases of workers that died are no work.
        if figures.held:
            return "working"
        if figures.jobs:
            return "waiting"
        return "dead" if figures.dead else "empty"


def backlog_statuses(facts: Facts, breakers: Sequence[BreakerStatus]) -> tuple[BacklogStatus, ...]:
    """The fullest first, then by dead jobs and name."""
    seen = {one.dependency: one for one in facts.backlogs}
    found = [
        BacklogStatus(
            seen=seen[breaker.name],
            breaker=breaker,
            age_s=max(0.0, facts.now - seen[breaker.name].read_at),
        )
        for breaker in breakers
        if breaker.name in seen
    ]
    return tuple(sorted(found, key=lambda one: (-one.share, -one.seen.figures.dead, one.name)))
