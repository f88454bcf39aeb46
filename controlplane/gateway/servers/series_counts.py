"""The counts between two heartbeats of a pod, as fields of series."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

from controlplane.gateway.servers.counter_delta import rise
from controlplane.series.kinds import (
    CALL_FIELDS,
    DEPENDENCY,
    FLEET,
    FULL_FIELDS,
    LATENCY_FIELDS,
    POD,
    RETRY_FIELDS,
    RULE,
    TENANT,
    TIMED_OUT_FIELDS,
    Kind,
)
from fuseboard.contract.load import CallLoad
from fuseboard.contract.sync import Counters, RuleCounters
from fuseboard.contract.words import Reason

#: Kind, name, and the second part of the name.
Thing = tuple[Kind, str, str]
#: Place of a field -> what was counted.
Fields = dict[int, int]
Counted = dict[Thing, Fields]

BLOCKED = frozenset((Reason.BREAKER_OPEN, Reason.PROBE_BUSY, Reason.FORCED_OPEN))
OVER_LIMIT = frozenset((Reason.QUOTA, Reason.VENDOR_LIMIT, Reason.CONCURRENCY, Reason.COOLING_DOWN))

THE_FLEET: Thing = (FLEET, "", "")
ALL_TENANTS = ""


def pod_of(name: str) -> Thing:
    return (POD, name, "")


def counted_by(pod: str, delta: Counters) -> Counted:
    """The difference between two heartbeats of a pod, as fields."""
    found: Counted = {}
    calls = failures = blocked = 0
    for one in delta.dependencies:
        counts = {
            "ok": one.ok,
            "failures": one.failure,
            "slow": one.slow,
            "neutral": one.neutral,
            "blocked": _sum(one.refused, BLOCKED),
            "over_limit": _sum(one.refused, OVER_LIMIT),
        }
        counts["refused_else"] = sum(one.refused.values()) - counts["blocked"] - counts["over_limit"]
        calls += one.ok + one.failure + one.slow + one.neutral
        failures += one.failure
        blocked += counts["blocked"]
        _add(
            found,
            (DEPENDENCY, one.dependency, ""),
            counts | dict(zip(CALL_FIELDS, one.latency, strict=False)),
        )
    for tenant in delta.tenants:
        counts = {"asked": tenant.allowed + tenant.refused, "refused": tenant.refused}
        _add(found, (TENANT, tenant.tenant, ""), counts)
        _add_rules(found, tenant.tenant, tenant.rules)
    _add_rules(found, ALL_TENANTS, delta.rules)
    store = delta.store
    common = {
        "requests": delta.requests,
        "refused": sum(delta.refused.values()),
        "decided_locally": delta.decided_locally,
        "calls": calls,
        "failures": failures,
        "redis_asked": store.asked,
    }
    fleet = {
        "unknown_tenants": delta.unknown_tenants,
        "blocked": blocked,
        "redis_timeouts": store.timeouts,
        "redis_errors": store.errors,
    }
    _add(found, THE_FLEET, common | fleet | dict(zip(LATENCY_FIELDS, store.latency, strict=False)))
    _add(found, pod_of(pod), common | {"redis_failed": store.timeouts + store.errors})
    return found


def _add(found: Counted, entity: Thing, counts: Mapping[str, int]) -> None:
    fields, places = found.setdefault(entity, {}), entity[0].places
    for field, count in counts.items():
        if count:
            fields[places[field]] = count


def _add_rules(found: Counted, tenant: str, rules: Iterable[RuleCounters]) -> None:
    for rule in rules:
        if rule.asked or rule.refused or rule.shadow:
            counts = {"asked": rule.asked or 0, "refused": rule.refused, "shadow": rule.shadow}
            _add(found, (RULE, tenant, rule.rule), counts)


def _sum(counts: Mapping[Reason, int], reasons: Iterable[Reason]) -> int:
    return sum([counts.get(reason, 0) for reason in reasons]) if counts else 0


class Slots(Protocol):
    """Totals of one tier of a bulkhead."""

    @property
    def full(self) -> int: ...
    @property
    def timed_out(self) -> int: ...


class Calls(Protocol):
    """Totals of the calls to one dependency; it also has ``RETRY_FIELDS``."""

    @property
    def slots(self) -> Sequence[Slots]: ...


def counted_of_calls(was: Mapping[str, Calls], now: Iterable[CallLoad], *, cut: bool) -> Counted:
    """Refusals of bulkheads and outcomes of retries since the earlier heartbeat.

    With ``cut``, the earlier list is not complete, so what is new in it counts from its next heartbeat.
    """
    found: Counted = {}
    for call in now:
        earlier = was.get(call.dependency)
        if earlier is None and cut:
            continue
        counts = {
            field: rise(getattr(earlier, field) if earlier else 0, getattr(call, field))
            for field in RETRY_FIELDS
        }
        slots = earlier.slots if earlier else ()
        for tier, full, timed_out, base in zip_longest(call.tiers, FULL_FIELDS, TIMED_OUT_FIELDS, slots):
            if tier is not None:
                counts[full] = rise(base.full if base else 0, tier.full)
                counts[timed_out] = rise(base.timed_out if base else 0, tier.timed_out)
        if any(counts.values()):
            _add(found, (DEPENDENCY, call.dependency, ""), counts)
    return found


def add_up(kept: Counted, counted: Counted, *, most: int) -> None:
    """Add ``counted`` to ``kept``, which has at most ``most`` things."""
    for thing, fields in counted.items():
        if thing in kept or len(kept) < most:
            sums = kept.setdefault(thing, {})
            for place, count in fields.items():
                sums[place] = sums.get(place, 0) + count
