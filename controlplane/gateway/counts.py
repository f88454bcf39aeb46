"""Numbers that requests raise. Counting costs an addition; `metrics` names them at each scrape."""

from bisect import bisect_left
from collections import Counter

#: Upper edges in seconds of the time from a heartbeat's head to its answer.
_EDGES_S = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class Counts:
    """Plain numbers, touched by every request."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.flushes = 0
        self.flush_failures = 0
        self.rows_flushed = 0
        self.reload_failures = 0
        self.series_spans = 0
        self.series_failures = 0
        #: Things that got no series, because there are too many of their kind.
        self.series_refused = 0
        #: Samples of refusals that were taken, and those that were left out because they were too many.
        self.refusal_samples = 0
        self.refusal_samples_left_out = 0
        self.metrics_by_agent_token = 0
        #: Attempts to send alerts without a worker, by the state after them; and pings, by their result.
        self.oncall_messages: Counter[str] = Counter()
        self.watchdog_pings: Counter[str] = Counter()
        self.seconds = 0.0
        self._buckets = [0] * (len(_EDGES_S) + 1)

    def observe(self, seconds: float) -> None:
        self.seconds += seconds
        self._buckets[bisect_left(_EDGES_S, seconds)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        total, found = 0, []
        for edge, count in zip((*map(str, _EDGES_S), "+Inf"), self._buckets, strict=True):
            total += count
            found.append((edge, float(total)))
        return found
