"""The worker knows what is spent of budgets, in case Redis loses it and every pod that knew it has gone.

Pods put back what they know, see ``kept_budgets.py`` of the agent. The worker keeps in Postgres what it saw,
and the ledger has what pods used while Redis did not answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
import structlog

from controlplane.ledger.reading import busiest_tenants, read_spent_since
from controlplane.postgres import delete_rows
from controlplane.redis.read_many import ask_many, read_many
from controlplane.redis.scripts import PATIENT_S, Script, limits
from controlplane.spending.budget_rows import Account, Budget
from controlplane.usage.budget_counters import (
    BudgetCounter,
    shared_counters,
    tenant_counters,
    tier_counters,
)
from controlplane.usage.models import KnownBudget
from fuseboard.contract import keys
from fuseboard.contract.budgets import MICRO_USD
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period

log = structlog.get_logger(__name__)

#: Counters that are looked at; of budgets of tiers, those of the tenants that spent most today.
MAX_COUNTERS, MAX_TENANTS = 5_000, 2_000
#: The longest period, and a day.
_KEPT = timedelta(days=32)

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
    known = {row.key: row for row in KnownBudget.objects.filter(environment=environment, key__in=looked)}
    changed: list[KnownBudget] = []
    restored = 0
    for key, seen in _seen(looked).items():
        one, before = looked[key], known.get(key)
        if before is not None and before.began != one.began:
            before = None
        if before is not None and before.mark != seen.mark:
            put_back, seen = _restored(environment, one, before)
            restored += put_back
        if not seen.mark:
            continue
        if before is None or 2 * seen.amount < before.amount:
            # The first look in this period, or an operator has cleared the counter.
            beyond = max(0, _in_ledger(environment, one) - seen.amount)
        else:
            beyond = before.beyond
        if before is None or (before.mark, before.amount) != (seen.mark, seen.amount):
            changed.append(
                KnownBudget(
                    environment=environment,
                    key=key,
                    began=one.began,
                    mark=seen.mark,
                    amount=seen.amount,
                    beyond=beyond,
                    at=now,
                )
            )
    KnownBudget.objects.bulk_create(
        changed,
        batch_size=2_500,
        update_conflicts=True,
        unique_fields=["environment", "key"],
        update_fields=["began", "mark", "amount", "beyond", "at"],
    )
    return restored


def forget_budgets(now: datetime) -> None:
    """Delete what was known of periods that are over."""
    delete_rows("usage_knownbudget", "at < %s", [now - _KEPT])


def _looked(environment: str, now: datetime) -> Iterable[_Looked]:
    of_tiers = Budget.objects.filter(environment=environment).exclude(tier="").exists()
    busy = busiest_tenants(environment, now, most=MAX_TENANTS) if of_tiers else []
    counters = [
        *shared_counters(environment),
        *tenant_counters(environment),
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
    parts = text.split(" ") if isinstance(text, str) else []
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def _restored(environment: str, one: _Looked, before: KnownBudget) -> tuple[bool, _Seen]:
    """Put back what is missing. Returns whether something was, and the budget after it."""
    key = one.counter.key
    total = max(0, _in_ledger(environment, one) - before.beyond)
    arguments = [one.began, one.ends, before.mark, before.amount, total]
    answer = _RESTORE.run(limits(deadline_s=PATIENT_S), keys=[key, keys.budget_mark(key)], args=arguments)
    if not answer:
        return False, _Seen("", 0)
    mark, spent, missing = (str(word) for word in answer)
    if int(missing):
        # The key has a digest of the tenant, and no name.
        log.warning("budget.restored", environment=environment, key=key, put_back=int(missing))
    return int(missing) > 0, _Seen(mark, int(spent))


def _in_ledger(environment: str, one: _Looked) -> int:
    """Micro-USD of the present period; 0 for another measure, which the ledger does not have as such."""
    row = one.counter.row
    if row.measure != MICRO_USD:
        return 0
    since = datetime.fromtimestamp(one.began / 1_000_000, UTC)
    if one.counter.tenant:
        return read_spent_since(environment, since, tenant=one.counter.tenant)
    pools = [row.dependency]
    if row.account:
        rows = Account.objects.filter(environment=environment, name=row.account)
        # It may have been removed after its budgets were read.
        pools = rows.values_list("pools", flat=True).first() or []
    return read_spent_since(environment, since, dependencies=pools)


def restore_all(environments: Iterable[str], now: datetime) -> int:
    """See ``restore_budgets``. A Redis that does not answer is asked again with the next run."""
    restored = 0
    for environment in environments:
        try:
            restored += restore_budgets(environment, now)
        except redis.RedisError as error:
            log.info("budget.not_looked_at", environment=environment, error=str(error))
    return restored
