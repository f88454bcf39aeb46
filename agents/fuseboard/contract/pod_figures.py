"""The figures that a pod exports by itself: as metrics of OpenTelemetry, and as text for Prometheus.

The catalogue of the control plane lists the second. None has the name of a tenant.
"""

from msgspec import Struct

from fuseboard.contract.primitives import LOCK_EDGES_S
from fuseboard.contract.sync import CALL_EDGES_MS, LATENCY_EDGES_US

DEPENDENCY, KIND, MODE, OUTCOME, REASON, TIER = "dependency", "kind", "mode", "outcome", "reason", "tier"
EVENT = "event"
#: Every series of Prometheus has it: the name that the pod reports in its heartbeats.
SERVER = "server"


class PodFigure(Struct, frozen=True):
    #: The name in OpenTelemetry.
    name: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()
    #: Whether it only grows while the agent runs.
    total: bool = False

    @property
    def series(self) -> str:
        """The name in Prometheus, as its exporter for OpenTelemetry makes it."""
        return (
            self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "") + ("_total" * self.total)
        )


def _total(name: str, unit: str, text: str, *labels: str) -> PodFigure:
    return PodFigure(name, unit, text, labels, total=True)


def _now(name: str, unit: str, text: str, *labels: str) -> PodFigure:
    return PodFigure(name, unit, text, labels)


REQUESTS = _total("fuseboard.requests", "{request}", "Requests that were decided.")
REFUSALS = _total(
    "fuseboard.refusals", "{refusal}", "Requests and calls that were refused.", KIND, REASON, DEPENDENCY
)
CALLS = _total("fuseboard.calls", "{call}", "Calls that ended.", DEPENDENCY, OUTCOME)
RETRIES = _total("fuseboard.retries", "{retry}", "Attempts after the first.", DEPENDENCY)
HELPED = _total("fuseboard.retries.helped", "{call}", "Calls that ended well because of a retry.", DEPENDENCY)
EXHAUSTED = _total(
    "fuseboard.retries.exhausted", "{call}", "Calls whose last allowed attempt failed.", DEPENDENCY
)
NO_BUDGET = _total("fuseboard.retries.no_budget", "{retry}", "Retries that the budget refused.", DEPENDENCY)
LOCAL = _total("fuseboard.decisions.local", "{decision}", "Decisions without Redis.")
REDIS_FAILURES = _total(
    "fuseboard.redis.failures",
    "{request}",
    "Requests to Redis without an answer in time (timeout), or with an error.",
    KIND,
)
LOCKS = _total(
    "fuseboard.locks",
    "{lock}",
    "Locks: acquired, and those of them after a wait (waited); taken by another process for the whole wait;"
    " lost; without an answer of Redis (unavailable); not released in time (unreleased); held for more than"
    " 60 s (long_held).",
    EVENT,
)
ONCE = _total(
    "fuseboard.once",
    "{run}",
    "Requests with an Idempotency-Key, and blocks of agent.once: begun; done before (replayed); in progress"
    " elsewhere (running); another request with this key (mismatched); lost their claim (lost); without an"
    " answer of Redis (unavailable); done before, with a kept answer that no key opens (unsealed).",
    EVENT,
)
IN_USE = _now(
    "fuseboard.bulkhead.in_use", "{call}", "Calls that have a slot of a bulkhead.", DEPENDENCY, TIER
)
SIZE = _now("fuseboard.bulkhead.size", "{call}", "Slots of a bulkhead, of all tiers.", DEPENDENCY)
WAITING = _now("fuseboard.bulkhead.waiting", "{call}", "Calls that wait for a slot.", DEPENDENCY, TIER)
LOCKS_HELD = _now("fuseboard.locks.held", "{lock}", "Locks that the process holds.")

#: Agents of one process are added.
TOTALS = (
    REQUESTS,
    REFUSALS,
    CALLS,
    RETRIES,
    HELPED,
    EXHAUSTED,
    NO_BUDGET,
    LOCAL,
    REDIS_FAILURES,
    LOCKS,
    ONCE,
)
SUMS = (IN_USE, SIZE, WAITING, LOCKS_HELD)

# Figures of one agent, for Prometheus only.

INFO = _now(
    "fuseboard.pod.info",
    "",
    "1, with the name and the version of the pod.",
    "environment",
    "service",
    "zone",
    "version",
)
READY = _now("fuseboard.pod.ready", "", "1 while the pod should get new requests, as its readiness probe.")
PRESSURE = _now("fuseboard.pod.pressure", "", "How much the pod is overloaded, from 0 to 1.")
IN_MODE = _now("fuseboard.pod.mode", "", "1 for how the pod decides now, 0 for the other modes.", MODE)
REVISION = _now("fuseboard.pod.revision", "", "The revision of the configuration that the pod applies.")
BREAKER = _now(
    "fuseboard.pod.breaker.state",
    "",
    "A breaker as the pod sees it: 0 closed, 1 open, 2 half-open, 3 forced open by an override.",
    DEPENDENCY,
)
LOCK_LONGEST = _now(
    "fuseboard.locks.longest", "s", "For how long the lock has been held that the process has held longest."
)
OF_POD = (INFO, READY, PRESSURE, IN_MODE, REVISION, BREAKER, LOCK_LONGEST)

#: Histograms. OpenTelemetry has none that is read from counts: it has those of locks as instruments.
REDIS_SECONDS = _now("fuseboard.redis.request", "s", "Response time of Redis, with late answers.")
LOCK_WAIT = _now("fuseboard.lock.wait", "s", "How long processes waited for a lock, also in vain.")
LOCK_HOLD = _now("fuseboard.lock.hold", "s", "How long blocks with a lock took.")
REDIS_EDGES_S = tuple(edge / 1_000_000 for edge in LATENCY_EDGES_US)
#: OpenTelemetry measures it when a call is reported.
CALL_SECONDS = _now(
    "fuseboard.call.duration", "s", "How long calls took, where callers measure it.", DEPENDENCY
)
ATTEMPTS = _now("fuseboard.call.attempts", "", "Attempts of calls that may be repeated.", DEPENDENCY)
#: Dependencies with histograms, the busiest first: each has 18 series.
MAX_IN_HISTOGRAMS = 20
#: The edges of the buckets: seconds, or attempts.
EDGES: dict[PodFigure, tuple[float, ...]] = {
    REDIS_SECONDS: REDIS_EDGES_S,
    CALL_SECONDS: tuple(edge / 1000 for edge in CALL_EDGES_MS),
    ATTEMPTS: tuple(range(1, 11)),
    LOCK_WAIT: LOCK_EDGES_S,
    LOCK_HOLD: LOCK_EDGES_S,
}

#: All of Prometheus, in their order. The histograms are the last.
EVERY = (*TOTALS, *SUMS, *OF_POD, *EDGES)
