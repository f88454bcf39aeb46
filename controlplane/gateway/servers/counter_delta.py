"""The difference of two heartbeats of a pod: the one place where cumulative counters are subtracted.

A difference has the shape of ``Counters``, without what did not change. Rates and series read it. It is made
when one of them needs it, not in the path of a heartbeat: a pod that sends ten heartbeats between two rows is
subtracted once.
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from fuseboard.contract.sync import (
    BUSIEST_TENANTS,
    Counters,
    DependencyCounters,
    RuleCounters,
    StoreCounters,
    TenantCounters,
)
from fuseboard.contract.words import Reason

_NO_DEPENDENCY = DependencyCounters(dependency="none")
_NO_TENANT = TenantCounters(tenant="none")
_NO_RULE = RuleCounters(rule="none", asked=0)


def difference(was: Counters, now: Counters, *, cut: bool) -> Counters:
    """The counts between two heartbeats. Each rule in it has ``asked``.

    With ``cut``, the earlier lists are not complete: something new in them may have counted before, so it
    counts from its next heartbeat.
    """
    return Counters(
        requests=rise(was.requests, now.requests),
        refused=_by_reason(was.refused, now.refused),
        unknown_tenants=rise(was.unknown_tenants, now.unknown_tenants),
        decided_locally=rise(was.decided_locally, now.decided_locally),
        store=StoreCounters(
            asked=rise(was.store.asked, now.store.asked),
            timeouts=rise(was.store.timeouts, now.store.timeouts),
            errors=rise(was.store.errors, now.store.errors),
            latency=rises(was.store.latency, now.store.latency),
        ),
        dependencies=_dependencies(was.dependencies, now.dependencies, cut=cut),
        tenants=_tenants(was, now),
        rules=_rules(_all_tenants(was), _all_tenants(now), new_counts=not cut),
    )


def all_tenants_listed(counters: Counters) -> bool:
    """Whether the pod lists every tenant that it counted a request of."""
    return sum([tenant.allowed + tenant.refused for tenant in counters.tenants]) >= counters.requests


def tenants_left_out(was: Counters, now: Counters, *, was_cut: bool, now_cut: bool) -> bool:
    """Whether their difference can lack requests of tenants: a list was cut or full, or had not all requests.

    Requests without a tenant are in no list: with them, a new tenant counts from its next heartbeat.
    """
    if not _has_all_tenants(was, cut=was_cut) or not _has_all_tenants(now, cut=now_cut):
        return True
    if all_tenants_listed(was):
        return False
    known = {tenant.tenant for tenant in was.tenants}
    return any(tenant.tenant not in known for tenant in now.tenants)


def _has_all_tenants(counters: Counters, *, cut: bool) -> bool:
    return (not cut and len(counters.tenants) < BUSIEST_TENANTS) or all_tenants_listed(counters)


def rise(was: int, now: int) -> int:
    """A counter must not fall. If one does, counting starts again from here."""
    return now - was if now > was else 0


def rises(was: Iterable[int], now: tuple[int, ...]) -> tuple[int, ...]:
    """The rises of a histogram; empty if nothing was counted. Zeros at the end may be missing."""
    if was == now:
        return ()
    return tuple([rise(old, new) for old, new in zip_longest(was, now, fillvalue=0)])


def _by_reason(was: Mapping[Reason, int], now: Mapping[Reason, int]) -> dict[Reason, int]:
    if was == now:
        return {}
    return {reason: count - was.get(reason, 0) for reason, count in now.items() if count > was.get(reason, 0)}


def _dependencies(
    bases: tuple[DependencyCounters, ...], now: tuple[DependencyCounters, ...], *, cut: bool
) -> tuple[DependencyCounters, ...]:
    if bases == now:
        return ()
    if [base.dependency for base in bases] != [after.dependency for after in now]:
        known = {base.dependency: base for base in bases}
        bases = tuple([known.get(after.dependency, after if cut else _NO_DEPENDENCY) for after in now])
    return tuple([_dependency(base, after) for base, after in zip(bases, now, strict=True) if base != after])


def _dependency(base: DependencyCounters, after: DependencyCounters) -> DependencyCounters:
    # A heartbeat that was too long left out how long calls took, so that is not known.
    known = base.latency or not (base.ok or base.failure or base.slow)
    return DependencyCounters(
        dependency=after.dependency,
        ok=rise(base.ok, after.ok),
        failure=rise(base.failure, after.failure),
        slow=rise(base.slow, after.slow),
        neutral=rise(base.neutral, after.neutral),
        refused=_by_reason(base.refused, after.refused),
        latency=rises(base.latency, after.latency) if known else (),
    )


def _tenants(was: Counters, now: Counters) -> tuple[TenantCounters, ...]:
    """The tenants that asked. A pod lists its busiest tenants only.

    One that was not listed before counts from zero if the list was complete then, and from its next
    heartbeat otherwise.
    """
    bases = was.tenants
    if bases == now.tenants:
        return ()
    if [base.tenant for base in bases] != [after.tenant for after in now.tenants]:
        known = {base.tenant: base for base in bases}
        complete = all_tenants_listed(was)
        bases = tuple([known.get(after.tenant, _NO_TENANT if complete else after) for after in now.tenants])
    found = []
    for base, after in zip(bases, now.tenants, strict=True):
        allowed, refused = rise(base.allowed, after.allowed), rise(base.refused, after.refused)
        if allowed or refused:
            # A tenant that was listed without its rules: how much they had counted is not known.
            rules = _rules(base, after, new_counts=not (base.allowed or base.refused))
            found.append(TenantCounters(tenant=after.tenant, allowed=allowed, refused=refused, rules=rules))
    return tuple(found)


def _all_tenants(counters: Counters) -> TenantCounters:
    return TenantCounters(tenant="", rules=counters.rules)


def _rules(base: TenantCounters, after: TenantCounters, *, new_counts: bool) -> tuple[RuleCounters, ...]:
    """The rules that counted something."""
    if not after.rules:
        return ()
    known = {rule.rule: rule for rule in base.rules}
    found = []
    for rule in after.rules:
        was = known.get(rule.rule, _NO_RULE if new_counts else None)
        if was is None:
            continue
        asked, refused = rise(_asked(was, base), _asked(rule, after)), rise(was.refused, rule.refused)
        shadow, leased = rise(was.shadow, rule.shadow), rise(was.leased, rule.leased)
        if asked or refused or shadow or leased:
            found.append(
                RuleCounters(rule=rule.rule, asked=asked, refused=refused, shadow=shadow, leased=leased)
            )
    return tuple(found)


def _asked(rule: RuleCounters, tenant: TenantCounters) -> int:
    return tenant.allowed + tenant.refused if rule.asked is None else rule.asked
