"""The counters of budgets are found with few rows, however many tenants have a budget."""

from typing import Any

import pytest

from controlplane.editing.plans import apply_plan, read_plan
from controlplane.policies.models import Tenant
from controlplane.spending.models import Budget
from controlplane.usage.budget_counters import budget_counters, counter_of, tenant_counters
from controlplane.usage.budgets import one_budget, use_of_budget
from fuseboard.contract import keys

NOW = 1_790_000_000.0


@pytest.fixture(autouse=True)
def budgets_of_tenants(production: str, ada: Any, settings: Any, redis_url: str) -> None:
    """Budgets of an account, of a tier, and of tenants t0 to t8; t0 is removed."""
    settings.REDIS_URL = redis_url
    names = [f"t{number}" for number in range(9)]
    tenants = ", ".join(f"{name}: {{tier: pro}}" for name in names)
    amount = "amount: 1000, period: day"
    own = ", ".join(f"{name}-day: {{tenant: {name}, {amount}}}" for name in names)
    shared = f"main-day: {{account: main, {amount}}}, pro-day: {{tier: pro, {amount}}}"
    text = f"accounts: {{main: {{}}}}\ntenants: {{{tenants}}}\nbudgets: {{{own}, {shared}}}"
    plan = read_plan(text)
    apply_plan(environment=production, plan=plan, expected_revision=None, reason="for a test", actor=ada)
    Tenant.objects.filter(key="t0").update(deleted=True)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the budgets whose rows are read."""
    names: list[str] = []
    as_before = Budget.from_db.__func__  # type: ignore[attr-defined]

    def from_db(model: type[Budget], *row: Any) -> Budget:
        found: Budget = as_before(model, *row)
        names.append(found.name)
        return found

    monkeypatch.setattr(Budget, "from_db", classmethod(from_db))
    return names


def test_the_first_budgets_of_tenants_are_read_and_no_more(read: list[str]) -> None:
    assert [one.tenant for one in tenant_counters("production", most=3)] == ["t1", "t2", "t3"]
    assert read == ["t1-day", "t2-day", "t3-day"]


def test_the_counters_of_all_budgets_are_found(read: list[str]) -> None:
    found = budget_counters("production", ["t7", "t8"], most=2)
    assert [(one.row.name, one.tenant) for one in found] == [
        ("main-day", ""),
        ("t1-day", "t1"),
        ("t2-day", "t2"),
        ("pro-day", "t7"),
        ("pro-day", "t8"),
    ]


@pytest.mark.parametrize(
    ("name", "tenant", "key"),
    [
        ("main-day", "", keys.account_budget("production", "main", "main-day")),
        ("t4-day", "t4", keys.tenant_budget("production", "t4", "t4-day")),
        ("pro-day", "t5", keys.tenant_budget("production", "t5", "pro-day")),
        ("t0-day", "t0", None),
        ("pro-day", "t0", None),
    ],
)
def test_of_one_budget_no_other_is_read(read: list[str], name: str, tenant: str, key: str | None) -> None:
    row = Budget.objects.get(name=name)
    counter = counter_of("production", row, tenant)
    assert (counter and counter.key) == key
    listed = use_of_budget("production", name, {(tenant, "")}, now=NOW).rows
    assert [(one.title, one.tenant) for one in listed] == ([(name, tenant)] if key else [])
    found = one_budget("production", name, tenant, now=NOW)
    assert (found and (found.title, found.tenant)) == ((name, tenant) if key else None)
    assert set(read) == {name}
