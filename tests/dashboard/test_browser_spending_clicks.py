"""The clicks of tasks about money, from the overview. Reasons, amounts and names are typed besides."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from browsing import Clicks, becomes, is_live

from controlplane.editing import edits
from controlplane.policies.models import Tenant
from controlplane.spending.models import Budget
from controlplane.status.read_watched import forget
from tests.controlplane.ledger.ledger_rows import put_day, today
from tests.people import ADA
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WHY = "CHG-4821 a campaign of this week"


@pytest.fixture
def spending(production: str) -> None:
    put_day(today(), tenant="globex", micro_usd=2_000_000)
    put_day(today(), tenant="acme-retail", micro_usd=9_000_000)
    forget()


def test_a_budget_is_set_in_three_clicks(sign_in: Any, production: str) -> None:
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Limits", "Budgets")
    clicks.on("a.btn:has-text('Add budget in USD')")
    clicks.page.select_option("[name=whose]", "tenant")
    clicks.page.fill("[name=tenant]", "acme-retail")
    clicks.page.fill("[name=amount]", "0.90")
    clicks.page.select_option("[name=period]", "day")
    clicks.page.fill("[name=reason]", WHY)
    clicks.on("#budget-form button[type=submit]")
    wait_until(lambda: Budget.objects.exists(), "the budget is set")
    assert clicks.count == 3
    row = Budget.objects.get()
    assert (row.tenant, row.amount, row.period) == ("acme-retail", 900_000, "day")


def test_a_budget_is_raised_for_an_hour_in_three_clicks(sign_in: Any, production: str, limits: Any) -> None:
    edits.set_budget(
        environment="production",
        budget="llm-day",
        dependency="payments-api",
        amount=5_000_000,
        period="day",
        expected_version=None,
        reason=WHY,
        actor=ADA,
    )
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Limits", "Budgets")
    clicks.on("a[href='/budgets/of/llm-day']")
    # An hour, and half as much again, are filled in.
    clicks.page.fill("form:has(button[value=raise]) [name=reason]", WHY)
    clicks.on("button[value=raise]")
    wait_until(lambda: Budget.objects.get().raised_to, "the budget is raised")
    assert clicks.count == 3
    row = Budget.objects.get()
    assert row.raised_to == 7_500_000
    left = row.raised_until - datetime.now(UTC)
    assert timedelta(minutes=50) < left <= timedelta(minutes=60)


def test_who_spends_most_takes_one_click_and_is_stopped_in_two_more(sign_in: Any, spending: None) -> None:
    page = sign_in("ada")
    is_live(page)
    clicks = Clicks(page)
    clicks.on("a[href='/costs?by=tenant']")
    becomes(page, "document.querySelector('tbody tr').innerText.includes('acme-retail')")
    assert clicks.count == 1
    clicks.on("tbody tr:first-child a:has-text('Stop tenant')")
    page.fill("[name=reason]", WHY)
    clicks.on("#edit-form button[value=save]")
    wait_until(lambda: Tenant.objects.get(key="acme-retail").suspended, "the tenant is stopped")
    assert clicks.count == 3
