"""Settings that older agents do not know. They apply the rest of the policy."""

from collections.abc import Iterable, Iterator

from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, dependency_fields, environment_fields, limits_in
from controlplane.policies.history import Changed
from controlplane.policies.models import STREAM_COLUMNS, Dependency
from controlplane.policies.protection import protection_in
from controlplane.spending.models import Account, Budget, Model

SHARED_SLOTS = "shared idle slots"
_MODELS = "models and prices"
_ACCOUNTS = "accounts"
_BUDGETS = "budgets"
_LEFT = "what vendors have left"
_FOLLOWED = "limits that follow their vendors"
_STORE_WAIT = "waits for Redis"
_LATENCY = "limits that follow the time of calls"
#: Settings that came with budgets: an agent that enforces no budget does not know them.
WITH_BUDGETS = frozenset((_MODELS, _ACCOUNTS, _BUDGETS, _LEFT, _FOLLOWED, _STORE_WAIT, _LATENCY))


def newer_settings(environment: str) -> list[str]:
    """Return those that the environment uses, in words."""
    found = set(_of_environment(environment_fields(environment_of(environment))))
    rows = Dependency.objects.filter(environment=environment).select_related("runbook")
    for row in rows.prefetch_related("vendor_limits"):
        found.update(_of_dependency(dependency_fields(row)))
    if Model.objects.filter(environment=environment).exists():
        found.add(_MODELS)
    if Account.objects.filter(environment=environment).exists():
        found.add(_ACCOUNTS)
    if Budget.objects.filter(environment=environment).exists():
        found.add(_BUDGETS)
    return sorted(found)


def newly_used(changes: Iterable[Changed]) -> list[str]:
    """Return those that a changed thing did not use before, in words."""
    found: set[str] = set()
    for change in changes:
        of = _READ.get(change.kind)
        if of is not None and change.after is not None:
            found |= {*of(change.after)} - {*of(change.before or {})}
    return sorted(found)


def _of_environment(fields: Fields) -> Iterator[str]:
    if any(limit.get("service") for limit in limits_in("subject_limits", fields).values()):
        yield "limits of all callers"
    if "tuning.ipv6_prefix" in fields:
        yield "networks of IPv6 callers"
    if "tuning.remaining_for_ms" in fields:
        yield _LEFT
    if "tuning.vendor_floor_percent" in fields:
        yield _FOLLOWED


def _of_dependency(fields: Fields) -> Iterator[str]:
    protection = protection_in(fields)
    if any(fields.get(column) for column in STREAM_COLUMNS):
        yield "times of streams"
    if fields.get("store_wait_ms"):
        yield _STORE_WAIT
    if fields.get("latency_rise_percent"):
        yield _LATENCY
    if any(protection.get("timeouts_ms", ())):
        yield "timeouts of tiers"
    if protection.get("bulkhead", {}).get("share_idle"):
        yield SHARED_SLOTS


def _of_account(fields: Fields) -> Iterator[str]:
    if fields:
        yield _ACCOUNTS


def _of_budget(fields: Fields) -> Iterator[str]:
    if fields:
        yield _BUDGETS


def _of_model(fields: Fields) -> Iterator[str]:
    if fields:
        yield _MODELS


_READ = {
    "environment": _of_environment,
    "dependency": _of_dependency,
    "model": _of_model,
    "account": _of_account,
    "budget": _of_budget,
}
