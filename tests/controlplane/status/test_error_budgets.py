"""Error budgets of dependencies and of quotas, from the stored series."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane.series import sealing
from controlplane.series.kinds import DEPENDENCY, RULE
from controlplane.status.error_budgets import dependency_budgets, tenant_budgets
from tests.controlplane.series.test_series_sealing import HOUR, SEALABLE, measure, row, thing, writer


@pytest.mark.django_db(transaction=True)
def test_a_budget_is_the_share_of_refused_and_failed_calls_against_the_target() -> None:
    one, llm, search = writer(), thing(DEPENDENCY, "llm"), thing(DEPENDENCY, "search")
    acme, everyone = thing(RULE, "acme", sub="requests"), thing(RULE, "", sub="requests")
    # 9,990 calls succeed and 20 do not: of 10,010, the target allows 10.01.
    measure(
        one,
        0,
        DEPENDENCY,
        {
            llm: row(DEPENDENCY, 9_990, failures=10, blocked=5, over_limit=3, refused_else=2),
            search: row(DEPENDENCY, 1_000),
        },
    )
    measure(one, 1, RULE, {acme: row(RULE, 1_000, refused=500), everyone: row(RULE, 1_000, refused=500)})
    assert sealing.seal(SEALABLE) == 1
    now = HOUR + timedelta(hours=1, minutes=20)
    spent, unspent = dependency_budgets("production", now)
    assert (spent.name, spent.asked, spent.bad) == ("llm", 10_010, 20)
    assert spent.burn == pytest.approx(20 / 10.01)
    assert spent.spent
    assert spent.burn_6h == pytest.approx(spent.burn)
    # Its calls were before the last 60 minutes.
    assert spent.burn_1h is None
    assert (unspent.name, unspent.left_percent, unspent.bad) == ("search", 100, 0)
    assert [one.name for one in dependency_budgets("production", now, name="search")] == ["search"]
    (quota,) = tenant_budgets("production", now)
    assert (quota.name, quota.quota, quota.asked, quota.bad) == ("acme", "requests", 1_000, 500)
    assert tenant_budgets("production", now, name="globex") == []
    # The last hour is read from frames.
    lately = dependency_budgets("production", HOUR + timedelta(minutes=30))
    assert lately[0].burn_1h == pytest.approx(20 / 10.01)
    later = HOUR + timedelta(days=29)
    assert dependency_budgets("production", later) == []


@pytest.mark.django_db
def test_without_calls_there_is_no_budget(production: Any) -> None:
    assert dependency_budgets("production", HOUR) == []
