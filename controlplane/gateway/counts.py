"""Numbers that requests and writers raise. Counting costs an addition; `metrics` names them when scraped."""

from bisect import bisect_left
from collections import Counter, defaultdict, deque

import structlog
from psycopg import DataError, IntegrityError
from psycopg.errors import ProgramLimitExceeded

log = structlog.get_logger(__name__)

#: Postgres answers, and refuses the value itself: another attempt would change nothing.
RefusedValue = (DataError, IntegrityError, ProgramLimitExceeded, UnicodeEncodeError)

#: Upper edges in seconds of the time from a heartbeat's head to its answer.
_EDGES_S = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class RefusedWrites:
    """Values that Postgres refused, and those that were dropped because of that. Times are monotonic."""

    #: How long an alert counts them, and the most that it counts.
    WINDOW_S = 600.0
    _MAX_COUNTED = 1_000
    #: Between two log lines about the same.
    _QUIET_S = 60.0

    def __init__(self) -> None:
        #: Environment and what was written -> how often.
        self.total: Counter[tuple[str, str]] = Counter()
        self._lately: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=self._MAX_COUNTED))
        self._logged: dict[tuple[str, str], float] = {}

    def add(
        self, what: str, error: BaseException, now: float, *, environment: str = "", name: str = ""
    ) -> None:
        """Count one; it concerns every environment if none is named. The log gets no value of a pod."""
        self.total[environment, what] += 1
        self._lately[environment].append(now)
        if now - self._logged.get((environment, what), float("-inf")) >= self._QUIET_S:
            self._logged[environment, what] = now
            log.error(
                "gateway.write_refused",
                what=what,
                environment=environment,
                name=name,
                kind=type(error).__name__,
                sqlstate=getattr(error, "sqlstate", None),
            )

    def lately(self, environment: str, now: float) -> int:
        """How many of this environment, or of all, were refused within the window."""
        return sum(
            now - at <= self.WINDOW_S
            for of in {environment, ""} & self._lately.keys()
            for at in self._lately[of]
        )


class Counts:
    """Plain numbers, touched by every request."""

    def __init__(self) -> None:
        self.refused_writes = RefusedWrites()
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
