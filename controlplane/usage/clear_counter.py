"""Clears one counter of a limit, in one transaction with its audit entry: its next call finds it empty.

Pods charged their fleet leases before, and spend them within 0.5 s. A pod asks Redis again 1 s after a
refusal that it remembers; pods of version 0.1.0 refuse until the remembered refusal ends.
"""

from collections.abc import Mapping

import redis
import structlog
from django.db import transaction

from controlplane.audit.actor import Actor
from controlplane.audit.record import acting, record
from controlplane.errors import InvalidEdit, NotFound, find
from controlplane.policies.document import environment_of, tuning_of
from controlplane.policies.limits import LimitColumns
from controlplane.policies.models import Dependency, Environment, Tenant, Tier
from controlplane.postgres import transaction_lock
from controlplane.redis.scripts import limits
from controlplane.usage.budget_counters import BudgetCounter, counter_of
from controlplane.usage.counter_keys import counter_key
from controlplane.usage.models import CORRECTIONS_LOCK, BudgetCorrection, KnownBudget
from controlplane.validation import Problems
from fuseboard.contract import keys
from fuseboard.contract.addresses import counted_address
from fuseboard.contract.words import Algorithm, Dimension, is_subject

log = structlog.get_logger(__name__)

_SUBJECT = "Use 1 to 200 characters without control characters."
DOWN = "Redis does not answer, and it has the counter. Try again when it is back."


def clear_counter(
    *,
    environment: str,
    reason: str,
    actor: Actor,
    limit: str = "",
    budget: str = "",
    tenant: str = "",
    dependency: str = "",
    values: Mapping[str, str] | None = None,
) -> bool:
    """Clear the counter of a quota of ``tenant``, of a vendor limit of ``dependency``, of a tenant's quota on
    calls to ``dependency``, or of a limit of callers. ``values``: of what it counts by, such as ``ip``. Or
    that of a ``budget``; the budget of a tier has one for each ``tenant``.

    Returns whether anything was counted. Raises ``InvalidEdit``, ``NotFound`` and ``redis.RedisError``.
    """
    problems = Problems()
    problems.reason(reason)
    if not (limit or budget):
        problems.add("limit", "Enter the name of a limit, such as requests.")
    if limit and budget:
        problems.add("budget", "Enter a limit or a budget, not both.")
    if tenant and not is_subject(tenant):
        problems.add("tenant", _SUBJECT)
    problems.settle()
    row = environment_of(environment)
    if budget:
        one = _budget(problems, row, budget, tenant, dependency)
        kind, name = ("tenant", one.tenant) if one.tenant else one.row.owner
        about = {"limit": one.columns.name, "budget": budget}
        was_counted = _clear(row, one.key, kind, name, about, reason=reason, actor=actor)
        _announce(row.slug, one.key)
        return was_counted
    found = _limit(row, tenant, dependency, limit)
    if found.algorithm == Algorithm.CONCURRENCY:
        problems.add("limit", "Its slots belong to calls that run. They are free when the calls end.")
    counted = _counted_by(problems, row, found, values or {})
    problems.settle()
    key = counter_key(row.slug, found.name, tenant=tenant, dependency=dependency, counted=counted)
    kind = "tenant" if tenant else "dependency" if dependency else "subject"
    # The values are left out: they are a caller, and the audit is never deleted.
    about = {"limit": limit} | ({"dependency": dependency} if tenant and dependency else {})
    about |= {"per": ", ".join(found.per)} if found.per else {}
    return _clear(row, key, kind, tenant or dependency or "a caller", about, reason=reason, actor=actor)


def _clear(
    row: Environment, key: str, kind: str, name: str, about: dict[str, str], *, reason: str, actor: Actor
) -> bool:
    with transaction.atomic():
        # The counter is cleared only while Postgres can keep the entry.
        acting(actor)
        if "budget" in about:
            transaction_lock(CORRECTIONS_LOCK, row.slug)
        was_counted = _delete(key)
        # The worker puts back no figure of before, if Redis loses its data.
        KnownBudget.objects.filter(environment=row.slug, key=key).update(amount=0, cleared=True)
        # A correction that waits is about calls of before.
        BudgetCorrection.objects.filter(environment=row.slug, key=key).delete()
        record(
            actor=actor,
            action="counter.cleared",
            target_kind=kind,
            target_name=name,
            after={**about, "counted": was_counted},
            reason=reason,
            environment=row.slug,
        )
    log.warning("counter.cleared", environment=row.slug, limit=about["limit"], actor=actor.name)
    return was_counted


def _announce(environment: str, key: str) -> None:
    """Pods that have not spent the budget lately forget what they know of it."""
    try:
        limits().publish(keys.budget_channel(environment), key)
    except redis.RedisError as error:
        # The counter is cleared. Only if Redis loses its data too, such a pod puts back what it knows.
        log.info("counter.not_announced", environment=environment, error=str(error))


def _budget(problems: Problems, row: Environment, name: str, tenant: str, dependency: str) -> BudgetCounter:
    budget = find(row.budgets.all(), "budget", name=name)
    if dependency and dependency != budget.dependency:
        problems.add("dependency", "A budget has its own owner: leave this empty.")
    if budget.tier and not tenant:
        problems.add("tenant", f"The budget counts each tenant of tier {budget.tier}: enter one.")
    elif tenant and not budget.tier and tenant != budget.tenant:
        problems.add("tenant", "The budget is not that of a tier: leave this empty.")
    problems.settle()
    counter = counter_of(row.slug, budget, tenant)
    if counter is None:
        raise InvalidEdit({"tenant": [f"Budget {name} does not apply to it."]})
    return counter


def _limit(row: Environment, tenant: str, dependency: str, name: str) -> LimitColumns:
    found: LimitColumns | None
    if tenant:
        found = _quota(row, tenant, dependency, name)
    elif dependency:
        found = _vendor_limit(row, dependency, name)
    else:
        found = row.subject_limits.filter(name=name).first()
    if found is None:
        raise NotFound("limit", name)
    return found


def _delete(key: str) -> bool:
    try:
        return bool(limits().delete(key))
    except (redis.TimeoutError, redis.ConnectionError):
        # Deleting again changes nothing.
        return bool(limits().delete(key))


def _quota(row: Environment, tenant: str, dependency: str, name: str) -> LimitColumns | None:
    """The tenant's own quota, or that of its tier. A tenant that is not registered has the default tier."""
    found = Tenant.objects.filter(environment=row, key=tenant, deleted=False).select_related("tier").first()
    if found is not None and (own := found.quotas.filter(name=name, dependency=dependency).first()):
        return own
    tier: Tier = row.default_tier if found is None else found.tier
    return tier.quotas.filter(name=name, dependency=dependency).first()


def _vendor_limit(row: Environment, dependency: str, name: str) -> LimitColumns | None:
    found = find(Dependency.objects.filter(environment=row), "dependency", name=dependency)
    return found.vendor_limits.filter(name=name).first()


def _counted_by(
    problems: Problems, row: Environment, limit: LimitColumns, values: Mapping[str, str]
) -> dict[str, str]:
    """The value of each dimension, as pods count it."""
    found: dict[str, str] = {}
    for dimension in limit.per:
        value = values.get(dimension, "").strip()
        if not value:
            problems.add(dimension, f"The limit counts by {' and '.join(limit.per)}: enter this value.")
        elif dimension != Dimension.ENDPOINT and not is_subject(value):
            problems.add(dimension, _SUBJECT)
        elif dimension == Dimension.IP:
            value = counted_address(value, tuning_of(row).ipv6_prefix)
        found[dimension] = value
    for dimension in values.keys() - found.keys():
        if values[dimension]:
            problems.add(dimension, "The limit does not count by this: leave it empty.")
    return found
