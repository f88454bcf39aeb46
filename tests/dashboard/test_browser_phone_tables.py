"""Tables on a phone, 390 pixels wide: each row is a few lines, and no column is left out."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from fleet_rows import put_figures
from positions import boxes, tops
from test_alerts_page import alert
from test_browser_phone import first_row, on_phone
from test_error_budgets_page import measured  # noqa: F401 - a fixture
from test_hot_keys_page import put_sample
from test_incident_pages import incident

from controlplane.accounts.tokens import create_agent_token
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Incident
from controlplane.editing import edits
from controlplane.policies.models import Environment
from controlplane.spending.budget_rows import Account
from controlplane.spending.models import Model, Price
from tests.controlplane.ledger.ledger_rows import put_day, today
from tests.people import ADA

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def has(row: list[str], *starts: str) -> None:
    """Each of these is the beginning of a cell that is seen."""
    for start in starts:
        assert any(cell.startswith(start) for cell in row), f"{start!r} is not in {row}"


def test_error_budgets_have_their_burns(sign_in: Any, measured: None) -> None:  # noqa: F811
    row = first_row(on_phone(sign_in, "olga", "/error-budgets"))
    has(row, "payments-api", "Left spent", "Refused or failed 20 of 1,000", "Burn, 1 h no calls")
    has(row, "Burn, 6 h 20.0", "Burn, 28 d", "Measured, days less than 0.1")


def test_alert_rules_say_which_of_them_page_people(sign_in: Any, production: str) -> None:
    row = first_row(on_phone(sign_in, "ada", "/alerts/rules"))
    has(row, "Level 1", "Fire after, s 120", "Clear after, s 300", "Change", "More than 0.5 % is a warning")


def test_incidents_begin_with_their_title_and_say_the_level(sign_in: Any, production: str) -> None:
    row = incident()
    Incident.objects.filter(pk=row.pk).update(closed_at=timezone.now(), closed_by="olga")
    page = on_phone(sign_in, "olga", "/incidents")
    seen = first_row(page)
    has(seen, "payments-api was open", f"Number {row.pk}", "Closed", "Level 2, critical", "Began ")
    assert any(cell.startswith("Closed ") and "by olga" in cell for cell in seen)
    title, number = tops(page, "table.stacks a.link", "table.stacks [data-th=Number]")
    assert title < number


def test_tiers_have_the_priority_that_their_page_speaks_of(sign_in: Any, production: str) -> None:
    row = first_row(on_phone(sign_in, "ada", "/tiers"))
    has(row, "Priority ", "Tenants ", "Refusals")


def test_tokens_say_where_and_since_when_they_work(sign_in: Any, production: str) -> None:
    create_agent_token(
        name="shop", environment="production", expires_at=timezone.now() + timedelta(days=30),
        reason="for the shop", actor=ADA,
    )  # fmt: skip
    row = first_row(on_phone(sign_in, "ada", "/tokens"))
    has(row, "shop ", "Environment production", "Created ", "Expires ", "Rotate or revoke")


def test_templates_have_their_burst_and_purpose(sign_in: Any, production: str) -> None:
    edits.set_template(
        environment="production", template="standard", limit=600, window_s=60, burst=50,
        title="Most customers", expected_version=0, reason="for most customers", actor=ADA,
    )  # fmt: skip
    row = first_row(on_phone(sign_in, "ada", "/templates"))
    has(row, "standard", "Limit 600", "Burst 50", "Used by ", "Most customers")


RULE = {
    "tenant": "acme-retail",
    "rule": "requests",
    "asked_per_s": 60.0,
    "refused_per_s": 2.0,
    "shadow_per_s": 1.0,
}


def test_hot_keys_have_what_is_refused(sign_in: Any, production: str) -> None:
    put_figures(rules=[RULE])
    put_sample(ip="3de805499743b7dd")
    page = on_phone(sign_in, "olga", "/hot-keys")
    row = first_row(page)
    has(row, "acme-retail", "requests", "Requests 60/s", "Refused 2/s", "Served by Redis")
    caller = page.locator("tr:has-text('3de805499743b7dd')")
    for words in ("acme-retail", "about 20", "requests"):
        assert caller.get_by_text(words, exact=True).is_visible(), words


def test_use_of_limits_has_requests_limit_and_shadow(sign_in: Any, production: str) -> None:
    put_figures(rules=[RULE])
    row = first_row(on_phone(sign_in, "olga", "/limits"))
    has(row, "acme-retail", "Quota requests", "Limit ", "Requests 60/s", "Refused 2/s", "Shadow 1/s")


def test_resolved_alerts_begin_with_what_happened(sign_in: Any, production: str) -> None:
    now = timezone.now()
    alert(
        state=AlertState.RESOLVED, text="payments-api is open", resolved_at=now, clear_since=now,
        acknowledged_by="olga", acknowledged_at=now - timedelta(minutes=2),
    )  # fmt: skip
    page = on_phone(sign_in, "olga", "/alerts")
    row = first_row(page)
    has(row, "payments-api", "Began ", "Resolved ", "Critical", "Acknowledged by olga")
    title, began = boxes(page, "table.stacks tr[data-row] td.ahead", "table.stacks [data-th=Began]")
    assert title["width"] > 300, "it has the whole line"
    assert title["y"] < began["y"]


def test_bulkheads_name_their_dependency_in_each_row(sign_in: Any, production: str) -> None:
    standard = {"limit": 150, "active": 2, "queued": 1}
    put_figures(protection={"payments-api": {"callers": 3, "tiers": {"standard": standard}}})
    page = on_phone(sign_in, "olga", "/bulkheads")
    rows = page.locator("table.stacks tr[data-row]")
    assert rows.count() == 3, "each tier"
    assert page.locator("table.stacks tr[data-row] td.strong:has-text('payments-api')").count() == 3
    has(first_row(page), "payments-api", "Critical", "Queued 0", "Refused, full 0", "Pods 3")


def test_models_have_their_next_price_and_aliases(sign_in: Any, production: str) -> None:
    where = Environment.objects.get(slug=production)
    model = Model.objects.create(environment=where, name="gpt-5.2", aliases=["large"])
    now = timezone.now().replace(second=0, microsecond=0)
    for starts_at, usd in ((now - timedelta(days=1), 2), (now + timedelta(days=3), 4)):
        Price.objects.create(
            model=model, starts_at=starts_at, input=usd * 1_000_000, cached=usd * 100_000,
            written=usd * 1_000_000, output=usd * 5_000_000,
        )  # fmt: skip
    page = on_phone(sign_in, "ada", "/models")
    row = first_row(page)
    has(row, "gpt-5.2", "Pool by host", "Input 2.00", "Output 10.00", "Next price 4.00 / 20.00")
    has(row, "Aliases large")
    page.goto("/models/of/gpt-5.2")
    has(first_row(page), "Input ", "From the cache ", "To the cache ", "Output ", "State ")


def test_accounts_have_their_hosts(sign_in: Any, production: str) -> None:
    Account.objects.create(
        environment=Environment.objects.get(slug=production), name="openai-main", pools=["search"],
        hosts=["api.openai.com"],
    )  # fmt: skip
    row = first_row(on_phone(sign_in, "ada", "/accounts"))
    has(row, "openai-main", "Pools search", "Hosts api.openai.com", "Budgets none")


def test_a_long_sum_of_money_stays_in_its_tile(sign_in: Any, production: str) -> None:
    """ "0.00243 USD" crossed the edge of its card, and the page scrolled sideways."""
    put_day(today(), calls=12_345, fresh=900, micro_usd=9_876_543_210_000, saved_micro_usd=2_430)
    page = on_phone(sign_in, "ada", "/costs")
    assert "< 0.01 USD" in page.locator(".kpis").inner_text()
    wider = "cards => cards.filter(card => card.scrollWidth > card.clientWidth).length"
    for width in (1440, 1100, 320, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.locator(".kpi").evaluate_all(wider) == 0, width
    assert not [cell for cell in first_row(page) if cell.startswith("Notes")], "it has none"


@pytest.mark.parametrize("path", ["/accounts", "/models", "/budgets"])
def test_what_an_empty_table_says_is_not_cut(sign_in: Any, production: str, path: str) -> None:
    cell = on_phone(sign_in, "ada", path).locator("table.stacks td[colspan]").first
    assert cell.evaluate("cell => cell.scrollHeight <= cell.clientHeight + 1")
