"""What a pod counted between two heartbeats, as fields of series."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

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
from fuseboard.contract.sync import Counters, DependencyCounters, RuleCounters, TenantCounters
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

_NO_DEPENDENCY = DependencyCounters(dependency="none")
_NO_TENANT = TenantCounters(tenant="none")
_NO_RULE = RuleCounters(rule="none", asked=0)


def pod_of(name: str) -> Thing:
    return (POD, name, "")


def difference(pod: str, was: Counters, now: Counters, *, cut: bool) -> Counted:
    """What was counted in between.

    With ``cut``, the earlier lists are not complete: something new in them may have counted before, so it
    counts from its next heartbeat.
    """
    found: Counted = {}
    calls, failures, blocked = _dependencies(found, was, now, cut=cut)
    _tenants(found, was, now)
    _rules(
        found,
        ALL_TENANTS,
        TenantCounters(tenant="none", rules=was.rules),
        TenantCounters(tenant="none", rules=now.rules),
        new_counts=not cut,
    )
    refused = sum(_by_reason(was.refused, now.refused).values())
    store, before = now.store, was.store
    timeouts, errors = _rise(before.timeouts, store.timeouts), _rise(before.errors, store.errors)
    common = {
        "requests": _rise(was.requests, now.requests),
        "refused": refused,
        "decided_locally": _rise(was.decided_locally, now.decided_locally),
        "calls": calls,
        "failures": failures,
        "redis_asked": _rise(before.asked, store.asked),
    }
    _add(
        found,
        THE_FLEET,
        common
        | {
            "unknown_tenants": _rise(was.unknown_tenants, now.unknown_tenants),
            "blocked": blocked,
            "redis_timeouts": timeouts,
            "redis_errors": errors,
        }
        | _latency(LATENCY_FIELDS, before.latency, store.latency),
    )
    _add(found, pod_of(pod), common | {"redis_failed": timeouts + errors})
    return found


def all_tenants_listed(counters: Counters) -> bool:
    """Whether the pod lists every tenant that it counted a request of."""
    return sum(tenant.allowed + tenant.refused for tenant in counters.tenants) >= counters.requests


def _rise(was: int, now: int) -> int:
    # A counter must not fall. If one does, counting starts again from here.
    return max(0, now - was)


def _by_reason(was: Mapping[Reason, int], now: Mapping[Reason, int]) -> dict[Reason, int]:
    return {reason: _rise(was.get(reason, 0), count) for reason, count in now.items()}


def _add(found: Counted, thing: Thing, counts: Mapping[str, int]) -> None:
    fields, places = found.setdefault(thing, {}), thing[0].places
    for field, count in counts.items():
        if count:
            fields[places[field]] = count


def _latency(names: Iterable[str], was: tuple[int, ...], now: tuple[int, ...]) -> dict[str, int]:
    was += (0,) * (len(now) - len(was))
    return {name: _rise(old, new) for name, old, new in zip(names, was, now, strict=False)}


def _sum(counts: Mapping[Reason, int], reasons: Iterable[Reason]) -> int:
    return sum(counts.get(reason, 0) for reason in reasons)


def _dependencies(found: Counted, was: Counters, now: Counters, *, cut: bool) -> tuple[int, int, int]:
    """Returns calls, failures, and blocked calls of all dependencies."""
    known = {base.dependency: base for base in was.dependencies}
    calls = failures = blocked = 0
    for after in now.dependencies:
        base = known.get(after.dependency, after if cut else _NO_DEPENDENCY)
        if base == after:
            continue
        refused = _by_reason(base.refused, after.refused)
        counts = {
            "ok": _rise(base.ok, after.ok),
            "failures": _rise(base.failure, after.failure),
            "slow": _rise(base.slow, after.slow),
            "neutral": _rise(base.neutral, after.neutral),
            "blocked": _sum(refused, BLOCKED),
            "over_limit": _sum(refused, OVER_LIMIT),
        }
        counts["refused_else"] = sum(refused.values()) - counts["blocked"] - counts["over_limit"]
        calls += counts["ok"] + counts["failures"] + counts["slow"] + counts["neutral"]
        failures += counts["failures"]
        blocked += counts["blocked"]
        if base.latency or not (base.ok or base.failure or base.slow):
            # A heartbeat that was too long left out how long calls took, so that is not known.
            counts |= _latency(CALL_FIELDS, base.latency, after.latency)
        _add(found, (DEPENDENCY, after.dependency, ""), counts)
    return calls, failures, blocked


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
    """What bulkheads refused, and what became of retries, since the earlier heartbeat.

    With ``cut``, the earlier list is not complete, so what is new in it counts from its next heartbeat.
    """
    found: Counted = {}
    for call in now:
        earlier = was.get(call.dependency)
        if earlier is None and cut:
            continue
        counts = {
            field: _rise(getattr(earlier, field) if earlier else 0, getattr(call, field))
            for field in RETRY_FIELDS
        }
        slots = earlier.slots if earlier else ()
        for tier, full, timed_out, base in zip_longest(call.tiers, FULL_FIELDS, TIMED_OUT_FIELDS, slots):
            if tier is not None:
                counts[full] = _rise(base.full if base else 0, tier.full)
                counts[timed_out] = _rise(base.timed_out if base else 0, tier.timed_out)
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


def _tenants(found: Counted, was: Counters, now: Counters) -> None:
    """A pod lists its busiest tenants only.

    One that was not listed before counts from zero if the list was complete then, and from its next
    heartbeat otherwise.
    """
    known = {base.tenant: base for base in was.tenants}
    complete = all_tenants_listed(was)
    for after in now.tenants:
        base = known.get(after.tenant) or (_NO_TENANT if complete else after)
        refused = _rise(base.refused, after.refused)
        asked = refused + _rise(base.allowed, after.allowed)
        if not asked:
            continue
        _add(found, (TENANT, after.tenant, ""), {"asked": asked, "refused": refused})
        # A tenant that was listed without its rules: how much they had counted is not known.
        _rules(found, after.tenant, base, after, new_counts=not (base.allowed or base.refused))


def _rules(
    found: Counted, tenant: str, base: TenantCounters, after: TenantCounters, *, new_counts: bool
) -> None:
    known = {rule.rule: rule for rule in base.rules}
    for rule in after.rules:
        was = known.get(rule.rule, _NO_RULE if new_counts else None)
        if was is None or (was == rule and rule.asked is not None):
            continue
        counts = {
            "asked": _rise(_asked(was, base), _asked(rule, after)),
            "refused": _rise(was.refused, rule.refused),
            "shadow": _rise(was.shadow, rule.shadow),
        }
        if any(counts.values()):
            _add(found, (RULE, tenant, rule.rule), counts)


def _asked(rule: RuleCounters, tenant: TenantCounters) -> int:
    return tenant.allowed + tenant.refused if rule.asked is None else rule.asked
