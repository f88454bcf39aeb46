"""The worker knows what is spent of budgets, in case Redis loses it and every pod that knew it has gone.

Pods put back what they know, see ``kept_budgets.py`` of the agent. The worker keeps in Postgres what it saw,
and the ledger has what pods used while Redis did not answer.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
import structlog
from django.db import connection, transaction
from django.db.models import Q, Sum
from redis.client import Pipeline
from redis.exceptions import NoScriptError

from controlplane.ledger.reading import busiest_tenants, read_spent_since, read_tenants_since
from controlplane.policies.models import Tenant
from controlplane.postgres import delete_rows
from controlplane.redis.read_many import ask_many, read_many
from controlplane.redis.scripts import PATIENT_S, Script, limits
from controlplane.repair.corrections import correct_budgets
from controlplane.spending.budget_rows import Account, Budget
from controlplane.usage.budget_counters import (
    BudgetCounter,
    parents_of,
    shared_counters,
    tenant_counters,
    tier_counters,
)
from controlplane.usage.models import BudgetCorrection, KnownBudget
from fuseboard.contract import keys
from fuseboard.contract.budgets import MAX_BUDGET, MICRO_USD
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period

log = structlog.get_logger(__name__)

#: Counters that are looked at; of budgets of tiers, and of own ones if there are more, those of the tenants
#: that spent most today.
MAX_COUNTERS, MAX_TENANTS = 5_000, 2_000
#: The longest period, and a day.
_KEPT = timedelta(days=32)
#: Within this time, pods report to a Redis that is back what they decided without it. The ledger has the same
#: calls, so it is counted later, and only for what is missing then.
_LEDGER_WAITS_US = 60_000_000
#: The columns that change from look to look.
_KNOWN = ("mark", "amount", "beyond", "ledger_waits", "cleared")
_NUMBERS = re.compile(r"([0-9]{1,16}) ([0-9]{1,16})", re.ASCII)

_RESTORE = Script(Path(__file__).parent / "lua" / "restore_budget.lua")


@dataclass(frozen=True)
class _Seen:
    mark: str
    amount: int


@dataclass(frozen=True)
class _Looked:
    counter: BudgetCounter
    began: int
    ends: int


def restore_budgets(environment: str, now: datetime) -> int:
    """Look at the budgets in Redis, and put back what is missing. Returns of how many something was missing.

    Raises ``redis.RedisError``.
    """
    looked = {one.counter.key: one for one in _looked(environment, now)}
    if not looked:
        return 0
    rows = KnownBudget.objects.filter(environment=environment, key__in=looked)
    known = {row.key: row for row in rows if row.began == looked[row.key].began}
    found = _seen(looked)
    asked = [looked[key] for key, seen in found.items() if _needs_ledger(known.get(key), seen)]
    ledger = _in_ledger(environment, asked)
    for key, one in known.items():
        if one.cleared:
            one.beyond = ledger.get(key, 0)
    answers = _restored(
        {
            key: _arguments(looked[key], before, seen, ledger.get(key, 0))
            for key, seen in found.items()
            if (before := known.get(key)) is not None and (before.mark != seen.mark or before.ledger_waits)
        }
    )
    changed: list[KnownBudget] = []
    restored = 0
    for key, last in found.items():
        before, seen, waits = known.get(key), last, False
        if key in answers:
            missing, waits, seen = _read_answer(answers[key])
            if missing:
                # The key has a digest of the tenant, and no name.
                log.warning("budget.restored", environment=environment, key=key, put_back=missing)
                restored += 1
        if not seen.mark:
            continue
        if before is None or 2 * seen.amount < before.amount:
            # The first look in this period, or calls got back most of it, or a counter that was just cleared
            # was stored again by a look that had begun before.
            beyond = max(0, ledger.get(key, 0) - seen.amount)
        else:
            beyond = before.beyond
        row = KnownBudget(
            environment=environment,
            key=key,
            began=looked[key].began,
            mark=seen.mark,
            amount=seen.amount,
            beyond=beyond,
            ledger_waits=waits,
            at=now,
        )
        if before is None or any(getattr(before, name) != getattr(row, name) for name in _KNOWN):
            changed.append(row)
    KnownBudget.objects.bulk_create(
        changed,
        batch_size=2_500,
        update_conflicts=True,
        unique_fields=["environment", "key"],
        update_fields=["began", *_KNOWN, "at"],
    )
    return restored


def _needs_ledger(before: KnownBudget | None, seen: "_Seen") -> bool:
    if before is None:
        return bool(seen.mark)
    lost, falls = before.mark != seen.mark, 2 * seen.amount < before.amount
    return lost or falls or before.ledger_waits or before.cleared


def forget_budgets(now: datetime) -> None:
    """Delete what was known of periods that are over."""
    delete_rows("usage_knownbudget", "at < %s", [now - _KEPT])


def _looked(environment: str, now: datetime) -> Iterable[_Looked]:
    budgets = Budget.objects.filter(environment=environment)
    of_tiers, own = budgets.exclude(tier=""), budgets.exclude(tenant="")
    many = own.count() > MAX_TENANTS
    busy: list[str] = []
    if many or of_tiers.exists():
        tenants = Tenant.objects.filter(environment=environment, deleted=False)
        # Pods may report tenants that do not exist, and the most expensive ones may have no budget.
        counted = tenants.filter(Q(tier__name__in=of_tiers.values("tier")) | Q(key__in=own.values("tenant")))
        busy = busiest_tenants(environment, now, most=MAX_TENANTS, among=counted.values("key"))
        # A tenant spends the budgets of those above it too.
        busy += parents_of(environment, busy).keys() - set(busy)
    only: dict[str, Any] = {"tenant__in": busy} if many else {}
    counters = [
        *shared_counters(environment),
        *tenant_counters(environment, most=MAX_COUNTERS, **only),
        *tier_counters(environment, busy),
    ]
    for counter in counters[:MAX_COUNTERS]:
        period, zone = Period(counter.columns.period), counter.columns.time_zone
        yield _Looked(counter, *period_around(int(now.timestamp() * 1_000_000), period, zone))


def _seen(looked: dict[str, _Looked]) -> dict[str, _Seen]:
    """The counters that could be read. Each is read before its mark: with an older mark, the counter of a
    store that has just lost its data would pass for one that was cleared.
    """
    texts = read_many(looked)
    of = {keys.budget_mark(key): key for key in looked}
    marks = ask_many(of, lambda pipeline, name: pipeline.hget(name, str(looked[of[name]].began)))
    found = {}
    for name, mark in marks.items():
        key = of[name]
        counted, made = _numbers(texts.get(key)), _numbers(mark)
        if counted is None or made is None:
            continue
        spent = counted[1] if counted[0] == looked[key].began else 0
        found[key] = _Seen(str(made[0]) if mark else "", spent)
    return found


def _numbers(text: Any) -> tuple[int, int] | None:
    """Two numbers, 0 and 0 for none; ``None`` for an error."""
    if text is None:
        return 0, 0
    # Pods write it, and a number that Postgres cannot store must not end the look at the others.
    found = _NUMBERS.fullmatch(text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2])) if found is not None else None


def _arguments(one: _Looked, before: KnownBudget, seen: _Seen, ledger: int) -> list[Any]:
    """The arguments of the script for a budget that Redis may have lost."""
    was = [before.mark, before.amount] if before.mark != seen.mark else ["", 0]
    return [one.began, one.ends, *was, max(0, ledger - before.beyond), _LEDGER_WAITS_US]


def _restored(arguments: dict[str, list[Any]]) -> dict[str, Any]:
    """Put back what is missing. Key -> the answer of the script, or an error instead."""

    def run(key: str) -> Any:
        names = [key, keys.budget_mark(key)]
        return _RESTORE.run(limits(deadline_s=PATIENT_S), keys=names, args=arguments[key])

    def put(pipeline: Pipeline, key: str) -> None:
        _RESTORE.put(pipeline, keys=[key, keys.budget_mark(key)], args=arguments[key])

    if not arguments:
        return {}
    first, *others = arguments
    # A Redis that has just begun does not have the script: one question loads it for the others.
    answers = {first: run(first)} | ask_many(others, put, deadline_s=PATIENT_S)
    # Another node of a Cluster does not have it either.
    return {key: run(key) if isinstance(one, NoScriptError) else one for key, one in answers.items()}


def _read_answer(answer: Any) -> tuple[int, bool, _Seen]:
    """How much was put back, whether the ledger is still to be counted, and the budget after it."""
    if not isinstance(answer, list) or len(answer) != 4:
        # It is outside of its period, or its node does not answer.
        return 0, False, _Seen("", 0)
    mark, spent, missing, waits = (str(word) for word in answer)
    return int(missing), waits == "1", _Seen(mark, int(spent))


def _in_ledger(environment: str, several: Iterable[_Looked]) -> dict[str, int]:
    """Key -> micro-USD of the present period; absent for other measures, which the ledger does not have.

    A correction that waits is left out: the counter gets it later, see ``corrections.py``.
    """
    several = list(several)
    if not several:
        return {}
    with transaction.atomic():
        with connection.cursor() as cursor:
            # Both as of one moment: a re-pricing writes them together.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        waiting = _waiting(environment, several)
        spent = _spent(environment, several)
    return {key: max(0, min(cost - waiting.get(key, 0), MAX_BUDGET)) for key, cost in spent.items()}


def _waiting(environment: str, several: Iterable[_Looked]) -> dict[str, int]:
    began = {one.counter.key: one.began for one in several}
    rows = BudgetCorrection.objects.filter(environment=environment, key__in=began)
    sums = rows.values("key", "began").annotate(sum=Sum("amount")).order_by()
    return {row["key"]: int(row["sum"]) for row in sums if row["began"] == began[row["key"]]}


def _spent(environment: str, several: Iterable[_Looked]) -> dict[str, int]:
    found: dict[str, int] = {}
    of_tenants: dict[datetime, dict[str, str]] = {}
    pools = dict(Account.objects.filter(environment=environment).values_list("name", "pools"))
    for one in several:
        row, key = one.counter.row, one.counter.key
        since = datetime.fromtimestamp(one.began / 1_000_000, UTC)
        if row.measure != MICRO_USD:
            continue
        if one.counter.tenant:
            of_tenants.setdefault(since, {})[key] = one.counter.tenant
        else:
            # The account may have been removed after its budgets were read.
            named = pools.get(row.account, []) if row.account else [row.dependency]
            found[key] = read_spent_since(environment, since, dependencies=named)
    for since, tenants in of_tenants.items():
        spent = read_tenants_since(environment, since, set(tenants.values()))
        found |= {key: spent.get(tenant, 0) for key, tenant in tenants.items()}
    return found


def restore_all(environments: Iterable[str], now: datetime) -> int:
    """Restore what is lost, and correct what was priced again. Returns how many were restored.

    A Redis that does not answer is asked again with the next run.
    """
    restored = 0
    for environment in environments:
        try:
            restored += restore_budgets(environment, now)
            correct_budgets(environment, now)
        except redis.RedisError as error:
            log.info("budget.not_looked_at", environment=environment, error=str(error))
    return restored
