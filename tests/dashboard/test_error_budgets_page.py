"""The pages with error budgets: a list of all, and a part of the pages of a dependency and of a tenant."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.series import sealing
from controlplane.series.kinds import DEPENDENCY, RULE
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def measured(production: str) -> None:
    """An hour of calls, a few hours ago."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    one = writer()
    payments = thing(DEPENDENCY, "payments-api", first_at=hour)
    search = thing(DEPENDENCY, "search", first_at=hour)
    quota = thing(RULE, "acme-retail", sub="requests", first_at=hour)
    gone = thing(DEPENDENCY, "gone", first_at=hour)
    calls = {payments: row(DEPENDENCY, 980, failures=20), search: row(DEPENDENCY, 9_995, blocked=5)}
    calls[gone] = row(DEPENDENCY, 10)
    measure(one, 0, DEPENDENCY, calls, hour=hour)
    measure(one, 0, RULE, {quota: row(RULE, 1_000)}, hour=hour)
    sealing.seal(hour + timedelta(hours=1, minutes=30))


def shown(client: Any, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return text_of(answer.content.decode())


def test_the_page_lists_what_is_spent_first(log_in: Any, measured: None) -> None:
    text = shown(log_in("vera"), "/error-budgets")
    assert "Error budgets 1 error budget spent." in text, "the heading is the name of the page"
    assert "payments-api spent 20 of 1,000 no calls 20.0 20.0 less than 0.1" in text
    assert "search 50 % 5 of 10,000 no calls 0.5 0.5" in text
    assert "acme-retail requests 100 % 0 of 1,000 no calls 0.0" in text
    page = log_in("vera").get("/error-budgets").content.decode()
    assert '<a href="/breakers/payments-api">' in page
    # A dependency that was deleted since then has no page.
    assert "gone 100 %" in text
    assert "/breakers/gone" not in page
    assert "/error-budgets" in log_in("vera").get("/refusals").content.decode()


def test_a_budget_that_is_nearly_whole_or_nearly_spent_is_not_100_or_0_percent(
    log_in: Any, production: str
) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    payments, search = (thing(DEPENDENCY, name, first_at=hour) for name in ("payments-api", "search"))
    calls = {
        payments: row(DEPENDENCY, 999_003, failures=997),
        search: row(DEPENDENCY, 999_999, failures=1),
    }
    measure(writer(), 0, DEPENDENCY, calls, hour=hour)
    sealing.seal(hour + timedelta(hours=1, minutes=30))
    text = shown(log_in("vera"), "/error-budgets")
    assert "payments-api 0.3 % 997 of 1,000,000" in text
    assert "search 99.9 % 1 of 1,000,000" in text


def test_a_dependency_and_a_tenant_show_theirs(log_in: Any, measured: None) -> None:
    client = log_in("vera")
    assert "Error budget 99.9 % over 28 days" in shown(client, "/breakers/payments-api")
    assert "search 50 %" not in shown(client, "/breakers/payments-api").split("Error budget")[-1]
    assert "acme-retail requests 100 %" in shown(client, "/tenant?key=acme-retail")


def test_without_stored_hours_the_page_says_so(log_in: Any, production: str) -> None:
    assert shown(log_in("vera"), "/error-budgets").count("No call is counted yet.") == 2


@pytest.mark.browser
def test_the_page_fits_a_phone(sign_in: Any, measured: None) -> None:
    page = sign_in("vera")
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/error-budgets")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
