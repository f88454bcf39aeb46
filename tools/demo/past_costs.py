"""A made-up past of costs, for pictures: a young demo has no month that is over, and no old budget."""

from typing import Any

from django.db import connection, transaction

from controlplane.audit.record import acting
from controlplane.ledger.invoices import months_to_enter, set_invoice
from controlplane.ledger.models import UsageDay
from controlplane.ledger.rows import AMOUNTS, sum_up
from controlplane.spending.models import Budget
from tools.demo.model_scenario import ANTHROPIC, GPT, OPENAI, SONNET
from tools.demo.seed import DIRECTOR, ENVIRONMENT

#: Account, pool, model, and what a month cost in the ledger and on the invoice, in micro-USD.
_MONTHS = (
    ("openai-main", OPENAI, GPT, 1_204_310_000, 1_204_310_000),
    ("anthropic-main", ANTHROPIC, SONNET, 371_900_000, 388_250_000),
)
_BUDGETS: dict[str, dict[str, Any]] = {
    "openai-week": {"dependency": OPENAI, "amount": 500_000_000, "period": "week"},
    "globex-week": {"tenant": "globex", "amount": 500_000_000, "period": "week"},
}
_REASON = "As on the invoice of the vendor"


def make_up_costs() -> None:
    """Two months with calls and invoices; and budgets that no revision made, as if they were older.

    Accounts and tiers have the calls since their pools and tenants came to them, with the demo.
    """
    months = months_to_enter()[:2]
    with transaction.atomic():
        acting(DIRECTOR)
        for account, pool, model, cost, invoiced in _MONTHS:
            usage = dict.fromkeys(AMOUNTS, 0) | {
                "calls": cost // 2_500,
                "output": cost // 12,
                "micro_usd": cost,
            }
            for month in months:
                UsageDay.objects.get_or_create(
                    environment=ENVIRONMENT, day=month, model=model, dependency=pool, defaults=usage
                )
                set_invoice(
                    environment=ENVIRONMENT,
                    account=account,
                    month=month,
                    micro_usd=invoiced,
                    reason=_REASON,
                    actor=DIRECTOR,
                )
        for name, fields in _BUDGETS.items():
            Budget.objects.get_or_create(environment_id=ENVIRONMENT, name=name, defaults=fields)
        with connection.cursor() as cursor:
            cursor.execute(sum_up("environment = %s AND day = ANY(%s)"), [ENVIRONMENT, months])
