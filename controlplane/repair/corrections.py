"""The worker corrects what is spent of budgets in Redis, after past calls were priced again.

A correction is written with the ledger, in one transaction. It is deleted after Redis has it, and Redis keeps
its number until the period ends: a worker that stops in between repeats it, and it counts once.
"""

from datetime import datetime
from pathlib import Path

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest

from controlplane.redis.scripts import PATIENT_S, Script, limits
from controlplane.usage.models import BudgetCorrection, KnownBudget
from fuseboard.contract import keys

#: Corrections of one run. The others wait for the next one.
MAX_AT_ONCE = 2_000
#: Answers of the script.
_LATER, _NEW, _DAMAGED = 0, 2, 3
_CORRECT = Script(Path(__file__).parent / "lua" / "correct_budget.lua")


def correct_budgets(environment: str, now: datetime) -> None:
    """Apply what waits, the oldest first. Raises ``redis.RedisError``."""
    now_us = int(now.timestamp() * 1_000_000)
    waiting = BudgetCorrection.objects.filter(environment=environment)
    waiting.filter(ends__lte=now_us).delete()
    store = limits(deadline_s=PATIENT_S)
    for row in waiting.order_by("pk")[:MAX_AT_ONCE]:
        arguments = [row.began, row.ends, row.pk, row.amount]
        answer, mark = _CORRECT.run(store, keys=[row.key, keys.budget_mark(row.key)], args=arguments)
        if answer == _DAMAGED:
            _to_the_end(row)
        elif answer != _LATER:
            if row.amount < 0:
                # Pods that have not spent it lately forget the larger figure of before. A worker that stops
                # here tells them again.
                store.publish(keys.budget_channel(environment), row.key)
            _done(row, mark, is_new=answer == _NEW)


def _to_the_end(row: BudgetCorrection) -> None:
    """Let others go first while its counter cannot be read. Redis does not know its number."""
    with transaction.atomic():
        # A person who clears the counter deletes it.
        deleted, _ = BudgetCorrection.objects.filter(pk=row.pk).delete()
        if deleted:
            row.pk = None
            row.save(force_insert=True)


def _done(row: BudgetCorrection, mark: str, *, is_new: bool) -> None:
    with transaction.atomic():
        if is_new:
            # The worker saw the budget before it. A repeated correction is in what it has seen since. With
            # another mark, Redis has lost what the worker saw, and has this correction apart from that.
            known = KnownBudget.objects.filter(
                environment=row.environment, key=row.key, began=row.began, mark=mark
            )
            known.update(amount=Greatest(0, F("amount") + row.amount))
        row.delete()
