"""Accounts and money budgets as people use them: added, seen on Budgets, raised for an hour, removed."""

import time
from typing import Any

import pytest

from controlplane.fleet.models import Server, ServerState
from controlplane.spending.budget_rows import Account, Budget
from fuseboard.contract import keys
from fuseboard.contract.budgets import MAX_BUDGET
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period
from tests.dashboard.editor_steps import page
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)

WHY = {"reason": "As in the contract with the vendor"}
WHERE = "/budgets/of/openai-main-month"


def spend(limits: Any, key: str, amount: int) -> None:
    began, _ = period_around(time.time_ns() // 1_000, Period.MONTH, "UTC")
    limits.set(key, f"{began} {amount}")


def version() -> str:
    return str(Budget.objects.get().version)


def new(**more: str) -> dict[str, str]:
    usual = {
        "whose": "account",
        "account": "openai-main",
        "amount": "50,000",
        "period": "month",
        "at_100": "stop",
    }
    return usual | WHY | more


@pytest.fixture
def ada(log_in: Any) -> Any:
    client = log_in("ada")
    typed = {"name": "openai-main", "pools": "search\r\n", "hosts": "api.openai.com", **WHY}
    answer = client.post("/accounts/new", typed)
    assert answer["Location"].startswith("/accounts/of/openai-main?saved=")
    return client


def test_an_account_is_shown_changed_and_removed(ada: Any) -> None:
    assert "search" in page(ada.get("/accounts"))
    where = "/accounts/of/openai-main"
    change = {"act": "change", "pools": "nothing", "hosts": "", "version": "1", **WHY}
    assert "There is no dependency" in page(ada.post(where, change), 422)
    assert ada.post(where, change | {"pools": ""}).status_code == 302
    assert Account.objects.get().pools == []
    assert "saved openai-main while you were editing" in page(ada.post(where, change), 409)
    assert "already exists" in page(ada.post("/accounts/new", {"name": "openai-main", **WHY}), 422)
    assert "Use 1 to 64 letters" in page(ada.post("/accounts/new", {"name": "a/b", **WHY}), 422)
    assert "Enter a name" in page(ada.post("/accounts/new", {"name": "", **WHY}), 422)
    assert ada.post(where, {"act": "remove", "version": "2", **WHY}).status_code == 302
    assert ada.get(where).status_code == 404


def test_a_budget_is_added_seen_raised_and_removed(ada: Any, limits: Any) -> None:
    assert "/budgets/money/new" in ada.get("/budgets").content.decode()
    shown = ada.get("/budgets/money/new?account=openai-main").content.decode()
    assert '<option value="openai-main" selected>' in shown
    for wrong, said in (
        ({"amount": "much"}, "Enter USD"),
        ({"whose": "nobody"}, "Choose whose budget it is."),
        ({"account": ""}, "Choose the account."),
        ({"account": "none"}, "There is no account"),
        ({"period": "year"}, "Choose one of"),
        ({"time_zone": "Mars"}, "time zone"),
    ):
        assert said in page(ada.post("/budgets/money/new", new(**wrong)), 422)
    answer = ada.post("/budgets/money/new", new())
    assert answer["Location"].startswith("/budgets?saved=")
    revision = answer["Location"].partition("saved=")[2].partition("&")[0]
    for where in (f"/revisions/{revision}", "/audit"):
        said = text_of(ada.get(where).content.decode().replace("<wbr>", ""))
        assert "50,000.00 USD" in said
        assert "50,000,000,000" not in said
    assert "already exists" in page(ada.post("/budgets/money/new", new()), 422)
    spend(limits, keys.account_budget("production", "openai-main", "openai-main-month"), 41_000_000_000)
    said = text_of(ada.get("/budgets").content.decode())
    assert "account openai-main openai-main-month 50,000.00 USD per month 41,000.00 USD, 82 %" in said
    assert "Above 80 %" in said

    raised = {"act": "raise", "amount": "60000", "minutes": "60", "version": version(), **WHY}
    assert "Enter USD" in page(ada.post(WHERE, raised | {"amount": "x"}), 422)
    assert ada.post(WHERE, raised).status_code == 302
    assert "Raised to 60,000.00 USD" in page(ada.get(WHERE))
    assert "raised to 60,000.00 USD" in page(ada.get("/audit")).replace("<wbr>", "")
    assert "saved openai-main-month while you were editing" in page(ada.post(WHERE, raised), 409)
    assert "60,000.00 USD per month 41,000.00 USD, 68.3 %" in text_of(ada.get("/budgets").content.decode())
    assert ada.post(WHERE, {"act": "lower", "version": version(), **WHY}).status_code == 302
    change = {
        "act": "change",
        "amount": "41000",
        "warn_percent": "90",
        "at_100": "warn",
        "version": version(),
    }
    assert ada.post(WHERE, change | WHY).status_code == 302
    said = text_of(ada.get("/budgets").content.decode())
    assert "41,000.00 USD per month, only warns" in said
    assert "Over budget" in said
    assert ada.post(WHERE, {"act": "remove", "version": version(), **WHY}).status_code == 302
    assert ada.get(WHERE).status_code == 404


def test_the_largest_budget_is_saved_as_its_page_shows_it(ada: Any) -> None:
    assert ada.post("/budgets/money/new", new(amount="9,007,199,254.740991")).status_code == 302
    assert page(ada.get(WHERE)).count('value="9,007,199,254.740991"') == 2
    change = {"act": "change", "amount": "9,007,199,254.740991", "at_100": "warn", "version": version()}
    assert ada.post(WHERE, change | WHY).status_code == 302
    assert Budget.objects.get().amount == MAX_BUDGET
    more = {"amount": "9,007,199,254.740992", "version": version()}
    assert "Enter at most 9,007,199,254.740991 USD." in page(ada.post(WHERE, change | more | WHY), 422)


def test_pods_that_do_not_enforce_budgets_are_named(ada: Any, fleet: Any) -> None:
    assert ada.post("/budgets/money/new", new()).status_code == 302
    Server.objects.filter(state=ServerState.ONLINE).update(enforces_budgets=True)
    assert "no budget applies there" not in page(ada.get("/budgets"))
    old = Server.objects.filter(state=ServerState.ONLINE).order_by("name").first()
    assert old is not None
    Server.objects.filter(pk=old.pk).update(enforces_budgets=False)
    assert f"1 pod runs an older agent ({old.name}): no budget applies there" in page(ada.get("/budgets"))


def test_a_viewer_reads_and_changes_nothing(ada: Any, log_in: Any) -> None:
    assert ada.post("/budgets/money/new", new()).status_code == 302
    vera = log_in("vera")
    for address in (WHERE, "/accounts", "/accounts/of/openai-main"):
        assert "<form" not in vera.get(address).content.decode().split("<main")[1]
    assert vera.get("/budgets/money/new").status_code == 403
    assert vera.post(WHERE, {"act": "remove", "version": "1", **WHY}).status_code == 403
    assert vera.post("/accounts/new", {"name": "x", **WHY}).status_code == 403
