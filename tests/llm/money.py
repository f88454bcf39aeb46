"""Models with prices, and budgets of their accounts and of tenants: what is charged, and what is counted."""

from typing import Any

import redis
from msgspec.structs import replace

from fuseboard.contract import keys
from fuseboard.contract.budgets import Account, Budget
from fuseboard.contract.models import Model, Price
from fuseboard.contract.policy import BreakerPolicy, Limit, Policy, Tier
from fuseboard.contract.words import Period
from tests.llm.pods import RULES, dependency, limits_of
from tools.demo.model_formats import Charged

GPT, CLAUDE = "gpt-5.2", "claude-sonnet-4-6"
#: Micro-USD per million tokens. The output of the first one costs no whole number of micro-USD.
PRICES = {
    GPT: Price(starts_at_s=0, input=2_500_000, cached=250_000, written=2_500_000, output=10_000_001),
    CLAUDE: Price(starts_at_s=0, input=3_000_000, cached=300_000, written=3_750_000, output=15_000_000),
}
#: The pool and the account of each model.
POOLS, ACCOUNTS = {GPT: "gpt", CLAUDE: "claude"}, {GPT: "openai", CLAUDE: "anthropic"}
#: No budget of this amount is ever spent.
AMPLE = 10**12
NEVER_OPENS = BreakerPolicy(consecutive_failures=0, minimum_calls=100_000)
LIMITS = limits_of("calls", "tokens", "input_tokens", "output_tokens")


def monthly(amount: int = AMPLE, **more: Any) -> Budget:
    return Budget(name="money", amount=amount, period=more.pop("period", Period.MONTH), **more)


def priced(
    *,
    of_tenants: Budget | None = None,
    of_accounts: Budget | None = None,
    limits: tuple[Limit, ...] = LIMITS,
    prices: dict[str, Price] | None = None,
    **of_pools: Any,
) -> Policy:
    """A pool for each model, an account for each pool, and a budget of each account and each tenant."""
    budgets = (of_accounts or monthly(),)
    return replace(
        RULES,
        tiers=(Tier(name="free", budgets=(of_tenants or monthly(),)),),
        dependencies=tuple(
            [replace(dependency(pool), vendor_limits=limits, **of_pools) for pool in POOLS.values()]
        ),
        accounts=tuple([Account(name=ACCOUNTS[one], pools=(POOLS[one],), budgets=budgets) for one in PRICES]),
        models=tuple(
            [Model(name=one, pool=POOLS[one], prices=(price,)) for one, price in (prices or PRICES).items()]
        ),
    )


def of_tenant(limits: redis.Redis, tenant: str = "acme") -> int:
    """What the budget of the tenant has counted, in micro-USD."""
    return _spent(limits, keys.tenant_budget(RULES.environment, tenant, "money"))


def of_account(limits: redis.Redis, model: str) -> int:
    return _spent(limits, keys.account_budget(RULES.environment, ACCOUNTS[model], "money"))


def _spent(limits: redis.Redis, key: str) -> int:
    text = limits.get(key)
    return int(text.split()[1]) if text else 0  # type: ignore[union-attr]


def charge(*charged: Charged, prices: dict[str, Price] | None = None) -> int:
    """The bill of the vendor in micro-USD. Each call is rounded up."""
    total = 0
    for one in charged:
        price = (prices or PRICES)[one.body["model"]]
        tokens = one.fresh * price.input + one.cached * price.cached + one.written * price.written
        total += -(-(tokens + one.output * price.output) // 1_000_000)
    return total
