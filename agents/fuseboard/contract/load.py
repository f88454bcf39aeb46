"""How busy a pod is and what its protection did, as a heartbeat reports it.

Totals count since the process started. The rest describes the moment.
"""

from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import LoadLevel, Name

Total = Annotated[int, Meta(ge=0, le=2**53)]
Milliseconds = Annotated[int, Meta(ge=0, le=10**12)]
PerMille = Annotated[int, Meta(ge=0, le=1_000)]
#: Thousandths of what the pod may use. More than 1,000 without a limit that binds; ``None`` for unknown.
Used = Annotated[int, Meta(ge=0, le=1_000_000)] | None

#: The most priorities of tiers that a pod distinguishes.
MAX_PRIORITIES = 16
#: The most dependencies of which a heartbeat reports the protection.
MAX_CALL_LOADS = 100


class PriorityLoad(Struct, frozen=True, kw_only=True, gc=False):
    """The requests of tenants whose tier has this priority. Totals since shedding was switched on."""

    priority: Annotated[int, Meta(ge=0, le=1_000_000)]
    asked: Total
    shed: Total


class PodLoad(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The pod as a whole."""

    pressure: PerMille = 0
    level: LoadLevel = LoadLevel.NORMAL
    #: Why the pressure is what it is, in words: ``94 calls wait (limit 100)``.
    cause: Annotated[str, Meta(max_length=200)] = ""
    cpu: Used = None
    #: Periods in which the pod's CPU limit stopped it, in thousandths.
    throttled: Used = None
    memory: Used = None
    #: How late the event loop runs its timers.
    lag_ms: Milliseconds = 0
    #: Requests that the pod serves now, and its calls that wait for a slot.
    in_flight: Total = 0
    waiting: Total = 0
    #: 95th percentile of requests; ``None`` after an idle window.
    p95_ms: Milliseconds | None = None
    #: Total of its own 5xx answers.
    errors: Total = 0
    #: Total of requests that a part in observe mode would have shed.
    observed: Total = 0
    #: It is under pressure for long enough, and asks to be unready.
    asks_unready: bool = False
    #: Its readiness probe answers 503 because of the pressure.
    unready: bool = False
    #: p95 of the slowest route beside its SLA, in thousandths of the SLA; ``None`` for unknown.
    late: Used = None
    #: Requests by the priority of the tier, while shedding is on; the lowest first.
    priorities: Annotated[tuple[PriorityLoad, ...], Meta(max_length=MAX_PRIORITIES)] = ()
    #: Its bulkheads apply ``share_idle``: a pod of an earlier version does not.
    shares_idle: bool = False


class TierLoad(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One tier of a bulkhead."""

    #: Its slots now.
    limit: Total = 0
    active: Total = 0
    queued: Total = 0
    #: The most active calls since the last heartbeat.
    peak: Total = 0
    #: Totals: calls that got a slot; that found queue and slots full; that waited too long; and that used a
    #: slot of a lower tier.
    entered: Total = 0
    full: Total = 0
    timed_out: Total = 0
    borrowed: Total = 0


class CallLoad(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The calls to one dependency that has a part of the protection."""

    dependency: Name
    #: Critical, standard, optional; empty without a bulkhead.
    tiers: Annotated[tuple[TierLoad, ...], Meta(max_length=3)] = ()
    #: How long calls take, and wait for a slot; ``None`` after an idle window.
    mean_ms: Milliseconds | None = None
    p95_ms: Milliseconds | None = None
    wait_p95_ms: Milliseconds | None = None
    #: Totals: first attempts; repeated ones; calls that a retry saved; and retries that the budget refused.
    first_calls: Total = 0
    retries: Total = 0
    helped: Total = 0
    no_budget: Total = 0
    #: Total of calls whose last allowed attempt failed.
    exhausted: Total = 0
    #: Totals: answers of a fallback; of these, from a cache; and calls for which every fallback failed.
    fallbacks: Total = 0
    cached: Total = 0
    fallback_failures: Total = 0
    #: The length of an adaptive queue, and what Little's law predicts.
    queue_size: Total | None = None
    queue_predicted: Total | None = None
    #: Total of calls that a part in observe mode would have refused.
    observed: Total = 0
    #: Totals: calls that were never reported and lost their slots; and calls that found no free slot while
    #: their own task had one.
    reclaimed: Total = 0
    nested: Total = 0


#: Retries per 1,000 s that the gateway allows one pod, by dependency.
RetryCaps = Annotated[dict[Name, Annotated[int, Meta(ge=0, le=10_000)]], Meta(max_length=MAX_CALL_LOADS)]
