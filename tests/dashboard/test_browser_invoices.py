"""The way of an invoice: entered on Costs, an alert while it is not what the ledger says, and corrected."""

from typing import Any

import pytest
from browsing import Clicks

from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.lifecycle import AlertEvent
from controlplane.editing import edits
from controlplane.ledger.invoices import months_to_enter
from controlplane.ledger.models import Invoice
from controlplane.status.read_watched import forget
from tests.controlplane.alerts.test_alert_evaluator import let_pass
from tests.controlplane.ledger.ledger_rows import put_day
from tests.people import ADA
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WHY = "As on the invoice of the vendor"


def news_of_drift() -> list[tuple[str, AlertEvent]]:
    """What an evaluation a minute later finds new."""
    for _ in range(2):
        forget()
        found = [(change.alert.key, change.news) for change in evaluate_environment("production")]
        let_pass(90)
    return [one for one in found if one[0].startswith("drift:")]


def test_an_invoice_that_differs_alerts_until_it_is_corrected(sign_in: Any, production: str) -> None:
    month, before = months_to_enter()[:2]
    edits.set_account(
        environment="production", account="main", pools=["search"], expected_version=0, actor=ADA, reason=WHY
    )
    put_day(before, dependency="search", micro_usd=1_000_000)
    put_day(month, dependency="search", micro_usd=98_000_000)

    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Limits", "Costs")
    clicks.on("a.btn:has-text('Invoices')")
    page = clicks.page
    page.select_option("[name=account]", "main")
    page.fill("[name=amount]", "100.00")
    page.fill("[name=reason]", WHY)
    clicks.on("button[value=save]")
    wait_until(lambda: Invoice.objects.exists(), "the invoice is saved")
    assert clicks.count == 3, "the month that ended last is filled in"
    assert Invoice.objects.get().month == month

    alert = f"drift:main/{month:%Y-%m}"
    assert news_of_drift() == [(alert, AlertEvent.FIRED)]
    page.goto("/alerts")
    page.wait_for_selector(f"text=The ledger of account main is 2 % below its invoice of {month:%B %Y}")
    page.locator("a[href='/costs/invoices']").first.click()
    page.wait_for_selector("text=1 invoice differs")

    page.click("tbody a:has-text('Correct')")
    page.wait_for_selector("text=Correct the invoice of main")
    page.fill("[name=amount]", "98.40")
    page.fill("[name=reason]", "The first total had the taxes")
    page.click("button[value=save]")
    wait_until(lambda: Invoice.objects.get().micro_usd == 98_400_000, "the invoice is corrected")
    assert news_of_drift() == [(alert, AlertEvent.RESOLVED)]
