"""Documents with accounts and budgets."""

from fuseboard.contract.budgets import Account, AtSpent, Budget
from fuseboard.contract.policy import Dependency, Policy, TenantRecord, Tier
from fuseboard.contract.words import Period

DAILY = Budget(name="daily", amount=900_000, period=Period.DAY)
MONTHLY = Budget(
    name="monthly",
    amount=50_000_000_000,
    period=Period.MONTH,
    time_zone="Europe/Berlin",
    warn_percent=50,
    at_100=AtSpent.DEGRADE.value,
)
BUDGET_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free", budgets=(DAILY,)),),
    dependencies=(
        Dependency(
            name="gpt",
            budgets=(Budget(name="tokens", amount=2**53 - 1, period=Period.HOUR, measure="tokens"),),
        ),
    ),
    accounts=(
        Account(name="openai-main", hosts=("api.openai.com",), pools=("gpt", "gpt-mini"), budgets=(MONTHLY,)),
        Account(name="spare"),
    ),
)

BUDGETS = {
    "policy.budgets.json": BUDGET_POLICY,
    "tenant.budgets.json": TenantRecord(tier="free", budgets=(DAILY,)),
}
