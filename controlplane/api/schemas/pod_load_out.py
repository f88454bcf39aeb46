"""Responses about pods that protect themselves: their load, and what the protection of calls does."""

from ninja import Schema

from controlplane.api.schemas import UnixTime
from controlplane.status.facts import Observing, PodLoad, Server
from controlplane.status.servers import spared_how, unhealthy_because

#: Unhealthy pods that one response lists.
MAX_UNHEALTHY = 100


class PodLoadOut(Schema):
    """How busy a pod is, and what it does about it. Parts are from 0 to 1; null for unknown."""

    #: From 0 to 1, and its cause in words.
    pressure: float
    cause: str
    #: The pod sheds by its pressure: normal, shed, or shed_hard.
    level: str
    cpu: float | None
    throttled: float | None
    memory: float | None
    lag_ms: int
    #: Requests that it serves; calls that wait for a slot.
    in_flight: int
    waiting: int
    p95_ms: int | None
    #: p95 of the slowest route, as a part of its SLA.
    late: float | None
    errors_per_s: float
    #: It asks to be unready because of pressure; and its readiness probe answers 503.
    asks_unready: bool
    unready: bool
    #: Why it is unhealthy; empty for a healthy pod.
    unhealthy: list[str]
    #: Bulkheads of all dependencies: their slots, those in use, and calls in the queues.
    slots: int
    slots_in_use: int
    queued: int
    #: Calls that a full bulkhead refused, and that waited too long in its queue.
    calls_refused_per_s: float
    retries_per_s: float
    #: Retries that the budget refused.
    retries_no_budget_per_s: float
    fallbacks_per_s: float
    #: Requests and calls that a part would have refused if it did not only observe.
    observed_per_s: float
    observed_calls_per_s: float


class SlotFiguresOut(Schema):
    """One tier of the bulkheads of all pods together."""

    tier: str
    limit: int
    active: int
    queued: int
    entered_per_s: float
    full_per_s: float
    timed_out_per_s: float


class CallFiguresOut(Schema):
    """What protects the calls to one dependency, over all pods. Rates of about 30 s."""

    #: Empty without a bulkhead.
    tiers: list[SlotFiguresOut]
    #: Pods that call it.
    callers: int
    mean_ms: float | None
    first_calls_per_s: float
    retries_per_s: float
    #: Calls that a retry saved; and retries that the budget refused.
    helped_per_s: float
    no_budget_per_s: float
    #: Calls whose last allowed attempt failed.
    exhausted_per_s: float
    fallbacks_per_s: float
    fallback_failures_per_s: float
    #: Calls that a part in observe mode would have refused.
    observed_per_s: float


class UnhealthyOut(Schema):
    server: str
    because: tuple[str, ...]
    #: The reasons that traffic spares it, in words: it is unready, it sheds.
    spared: str


class ObservingOut(Schema):
    """A part of the protection that decides and counts, but refuses nothing."""

    part: str
    until: UnixTime
    by: str
    reason: str


class PodsOut(Schema):
    """How pods protect themselves."""

    #: Live pods by what they shed; pods that report no load are in none.
    by_level: dict[str, int]
    unready: int
    #: How many live pods are unhealthy, and the first 100 of them.
    unhealthy: int
    unhealthy_pods: list[UnhealthyOut]
    #: Requests per second that pods would shed if shedding did not only observe.
    observed_per_s: float
    observing: list[ObservingOut]


def load_out(server: Server, unhealthy_at: float) -> PodLoadOut | None:
    """Return the load, and why the pod is unhealthy: see ``controlplane.status.servers``."""
    load = server.load
    if load is None:
        return None
    parts = {name: _part(getattr(load, name)) for name in ("cpu", "throttled", "memory", "late")}
    same = {name: getattr(load, name) for name in PodLoadOut.model_fields if hasattr(load, name)}
    changed = {"pressure": load.pressure / 1000, "unhealthy": unhealthy_because(server, unhealthy_at)}
    return PodLoadOut(**{**same, **parts, **changed})


def pods_out(servers: list[Server], observing: tuple[Observing, ...], unhealthy_at: float) -> PodsOut:
    live = [server for server in servers if server.live]
    loads: list[PodLoad] = [server.load for server in live if server.load is not None]
    observes = any(one.part == "shedding" for one in observing)
    unhealthy = [(server, because) for server in live if (because := unhealthy_because(server, unhealthy_at))]
    levels = ("normal", "shed", "shed_hard")
    return PodsOut(
        by_level={level: sum(load.level == level for load in loads) for level in levels},
        unready=sum(load.unready for load in loads),
        unhealthy=len(unhealthy),
        unhealthy_pods=[
            UnhealthyOut(server=server.name, because=because, spared=spared_how(server, observes=observes))
            for server, because in unhealthy[:MAX_UNHEALTHY]
        ],
        observed_per_s=round(sum(load.observed_per_s for load in loads), 3),
        observing=[ObservingOut.model_validate(one) for one in observing],
    )


def _part(thousandths: int | None) -> float | None:
    return None if thousandths is None else thousandths / 1000
