"""Error budgets of dependencies and of quotas, from the stored series."""

from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.utils import timezone

from controlplane.refusals.models import TopList
from controlplane.refusals.top_lists import REQUESTS_BY_TENANT
from controlplane.series import sealing
from controlplane.series.kinds import DEPENDENCY, RULE
from controlplane.status import error_budgets
from controlplane.status.error_budgets import MAX_BUDGETS, ErrorBudget, dependency_budgets, tenant_budgets
from tests.controlplane.calling import API, send, token_of
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
    found = dependency_budgets("production", now)
    spent, unspent = found.lines
    assert found.spent == 1
    assert (spent.name, spent.asked, spent.bad) == ("llm", 10_010, 20)
    assert spent.burn == pytest.approx(20 / 10.01)
    assert spent.spent
    assert spent.burn_6h == pytest.approx(spent.burn)
    # Its calls were before the last 60 minutes.
    assert spent.burn_1h is None
    assert (unspent.name, unspent.left_percent, unspent.bad) == ("search", 100, 0)
    assert [one.name for one in dependency_budgets("production", now, name="search").lines] == ["search"]
    (quota,) = tenant_budgets("production", now).lines
    assert (quota.name, quota.quota, quota.asked, quota.bad) == ("acme", "requests", 1_000, 500)
    assert tenant_budgets("production", now, name="globex").lines == []
    # The last hour is read from frames.
    for name in ("", "llm"):
        lately = dependency_budgets("production", HOUR + timedelta(minutes=30), name=name)
        assert lately.lines[0].burn_1h == pytest.approx(20 / 10.01)
    later = dependency_budgets("production", HOUR + timedelta(days=29))
    assert (later.lines, later.spent) == ([], 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("minutes", [1, 29, 31, 59])
def test_every_range_has_the_hour_that_burns_now(minutes: int) -> None:
    """Six hours with this hour burn at least a sixth of it, though only hours before it are stored."""
    one, llm, fresh = writer(), thing(DEPENDENCY, "llm"), thing(DEPENDENCY, "fresh")
    for ago in range(5):
        calm = {llm: row(DEPENDENCY, 1_000)}
        measure(one, 0, DEPENDENCY, calm, hour=HOUR - timedelta(hours=ago))
    now = HOUR + timedelta(hours=1, minutes=minutes)
    assert sealing.seal(HOUR + timedelta(hours=1, minutes=6)) == 5
    last = HOUR + timedelta(hours=1)
    burning = {llm: row(DEPENDENCY, 0, failures=1_000), fresh: row(DEPENDENCY, 0, blocked=10)}
    measure(one, 0, DEPENDENCY, burning, hour=last)
    fresh_line, llm_line = dependency_budgets("production", now).lines
    assert (fresh_line.name, fresh_line.asked, fresh_line.burn_6h) == ("fresh", 10, 1_000)
    assert (llm_line.asked, llm_line.bad) == (6_000, 1_000)
    assert llm_line.burn_1h is not None
    assert llm_line.burn_6h is not None
    assert llm_line.burn_6h >= llm_line.burn_1h / 6
    # The hour is counted once after it is stored, too.
    sealing.seal(last + timedelta(hours=1, minutes=6))
    (stored,) = dependency_budgets("production", last + timedelta(hours=1, minutes=7), name="llm").lines
    assert (stored.asked, stored.bad) == (6_000, 1_000)


def test_a_budget_that_is_just_spent_is_spent() -> None:
    """0.1 % is not exact as a binary fraction: one call of 1,000 left a part of the budget."""
    used: Any = {"name": "llm", "quota": "", "known_s": 60, "burn_1h": None, "burn_6h": None}
    just = ErrorBudget(asked=1_000, bad=1, **used)
    assert (just.spent, just.left_percent) == (True, 0)
    assert not ErrorBudget(asked=1_001, bad=1, **used).spent


def test_the_api_has_the_budgets_of_the_page(production: str) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    llm, acme = thing(DEPENDENCY, "llm", first_at=hour), thing(RULE, "acme", sub="requests", first_at=hour)
    measure(writer(), 0, DEPENDENCY, {llm: row(DEPENDENCY, 9_995, failures=5)}, hour=hour)
    measure(writer("g2"), 0, RULE, {acme: row(RULE, 1_000, refused=500)}, hour=hour)
    sealing.seal(hour + timedelta(hours=1, minutes=30))
    token = token_of("viewer")
    found = send(token, "GET", f"{API}/error-budgets").json()
    assert (found["target_percent"], found["days"], found["spent"]) == (99.9, 28, 1)
    (one,), (quota,) = found["dependencies"], found["tenants"]
    assert (one["name"], one["quota"], one["asked"], one["bad"]) == ("llm", "", 10_000, 5)
    assert one["left_percent"] == pytest.approx(50)
    assert one["burn_1h"] is None
    assert (quota["name"], quota["quota"], quota["spent"]) == ("acme", "requests", True)
    only = send(token, "GET", f"{API}/error-budgets?tenant=acme").json()
    assert (only["dependencies"], len(only["tenants"])) == ([], 1)
    only = send(token, "GET", f"{API}/error-budgets?dependency=llm").json()
    assert (len(only["dependencies"]), only["tenants"], only["spent"]) == (1, [], 0)


@pytest.mark.django_db(transaction=True)
def test_environments_are_apart() -> None:
    """Both have a dependency of one name."""
    ours, theirs = thing(DEPENDENCY, "llm"), thing(DEPENDENCY, "llm", environment="staging")
    measure(writer(), 0, DEPENDENCY, {ours: row(DEPENDENCY, 900, failures=100)})
    measure(writer(environment="staging"), 0, DEPENDENCY, {theirs: row(DEPENDENCY, 50)})
    sealing.seal(SEALABLE)
    for now in (HOUR + timedelta(hours=1, minutes=20), HOUR + timedelta(minutes=30)):
        for name in ("", "llm"):
            (one,) = dependency_budgets("production", now, name=name).lines
            assert (one.asked, one.bad) == (1_000, 100)
            (other,) = dependency_budgets("staging", now, name=name).lines
            assert (other.asked, other.bad) == (50, 0)
    assert one.burn_1h == pytest.approx(100)
    assert other.burn_1h == 0


@pytest.mark.django_db(transaction=True)
def test_what_is_read_is_bounded_and_all_that_is_spent_is_counted() -> None:
    """A list has 50 of 60 that are spent; hours are read of as many as is set."""
    quotas = {
        thing(RULE, f"t{number}", sub="requests"): row(RULE, 100 + number, refused=50 * (number < 60))
        for number in range(80)
    }
    measure(writer(), 0, RULE, quotas)
    sealing.seal(SEALABLE)
    now = HOUR + timedelta(hours=1, minutes=20)
    found = tenant_budgets("production", now)
    assert (len(found.lines), found.spent) == (MAX_BUDGETS, 60)
    TopList.objects.create(
        environment="production", kind=REQUESTS_BY_TENANT.number, grain_s=3600, at=HOUR, writer=0,
        names=["t7", "t9", "t5"], counts=[50.0, 50.0, 50.0], total=150.0, short_by=0.0,
    )  # fmt: skip
    with patch.object(error_budgets, "_MAX_READ", 3):
        assert [one.name for one in tenant_budgets("production", now).lines] == ["t5", "t7", "t9"]


@pytest.mark.django_db
def test_without_calls_there_is_no_budget(production: Any) -> None:
    assert dependency_budgets("production", HOUR).lines == []
