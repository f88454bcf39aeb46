"""The sampled log of refusals: what this gateway keeps of what pods report, until it is written.

Pods are not trusted: what a pod may add in a minute is bounded, and so are the weight of a sample, the rules
with a sample, and what waits for Postgres. A rule that refuses seldom has its place beside one that
refuses always.
"""

from collections import deque
from dataclasses import dataclass

from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts
from controlplane.refusals.weighted_sample import WeightedSample
from fuseboard.contract.refusal_samples import RefusalSample
from fuseboard.contract.sync import SyncRequest
from fuseboard.contract.words import Reason, is_slug

#: Samples of this time are written together.
SPAN_S = 15
#: Rules (with their dependency and reason) with a sample in one span and environment, the size of it, and the
#: size of the one that all others share. At most 84 rows.
GROUPS, PER_GROUP, OF_OTHERS = 24, 3, 12
#: Samples of one pod in one minute; it sends at most 32 in a heartbeat.
PER_POD = 200
#: A sample stands for at most so many refusals: two pods' worth of a flood.
MAX_WEIGHT = 100_000.0
#: Spans that wait while Postgres is down: 5 minutes.
MAX_WAITING = 20

_Group = tuple[str, str, Reason]


@dataclass(frozen=True, slots=True)
class ReportedSample:
    """One sample, with who sent it and when the refusal was."""

    at: float
    service: str
    server: str
    sample: RefusalSample


@dataclass(frozen=True, slots=True)
class LoggedRefusal:
    environment: str
    weight: float
    heard: ReportedSample


class _Environment:
    def __init__(self) -> None:
        self.groups: dict[_Group, WeightedSample[ReportedSample]] = {}
        self.others: WeightedSample[ReportedSample] = WeightedSample(OF_OTHERS)

    def group(self, sample: RefusalSample) -> WeightedSample[ReportedSample]:
        key = (sample.dependency, sample.rule, sample.reason)
        found = self.groups.get(key)
        if found is None:
            if len(self.groups) >= GROUPS:
                return self.others
            found = self.groups[key] = WeightedSample(PER_GROUP)
        return found


class RefusalLog:
    def __init__(self, clock: Clock, counts: Counts) -> None:
        self._clock, self._counts = clock, counts
        self._span = -1
        self._environments: dict[str, _Environment] = {}
        self._minute = -1
        #: Pod -> its samples in this minute. Pods are few enough: the gateway admits each name.
        self._by_pod: dict[tuple[str, str], int] = {}
        self._waiting: deque[list[LoggedRefusal]] = deque()

    def record(self, beat: SyncRequest) -> list[tuple[float, RefusalSample]]:
        """Take the samples of a heartbeat that is neither late nor repeated; returns those, with weights."""
        wall = self._clock.wall()
        self._turn(wall)
        pod = (beat.environment, beat.server)
        used = self._by_pod.get(pod, 0)
        taken = beat.refusals[: max(0, PER_POD - used)]
        if taken:
            self._by_pod[pod] = used + len(taken)
        environment = self._environments.get(beat.environment)
        if environment is None:
            environment = self._environments[beat.environment] = _Environment()
        good = [sample for sample in taken if not sample.dependency or is_slug(sample.dependency)]
        self._counts.refusal_samples += len(good)
        self._counts.refusal_samples_left_out += len(beat.refusals) - len(good)
        weighed = [(min(sample.weight, MAX_WEIGHT), sample) for sample in good]
        for weight, sample in weighed:
            heard = ReportedSample(wall - sample.ago_ms / 1000, beat.service, beat.server, sample)
            environment.group(sample).offer(weight, heard)
        return weighed

    def finished(self) -> list[LoggedRefusal]:
        """The oldest span that is over; empty if there is none. It stays until ``drop``."""
        self._turn(self._clock.wall())
        return self._waiting[0] if self._waiting else []

    def drop(self) -> None:
        """The oldest span is written."""
        if self._waiting:
            self._waiting.popleft()

    def _turn(self, wall: float) -> None:
        span = int(wall // SPAN_S)
        if span == self._span:
            return
        self._span = span
        rows = [
            LoggedRefusal(name, weight, heard)
            for name, environment in self._environments.items()
            for sample in (*environment.groups.values(), environment.others)
            for weight, heard in sample.kept
        ]
        self._environments = {}
        if rows:
            if len(self._waiting) >= MAX_WAITING:
                self._counts.refusal_samples_left_out += len(self._waiting.popleft())
            self._waiting.append(rows)
        minute = span * SPAN_S // 60
        if minute != self._minute:
            self._minute, self._by_pod = minute, {}
