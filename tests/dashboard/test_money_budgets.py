"""Accounts and money budgets as people use them: added, seen on Budgets, raised for an hour, removed."""

import re
import time
from typing import Any

import pytest
from fleet_rows import put_figures

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
    typed = {"name": "openai-main", "pools": "search", "hosts": "api.openai.com", **WHY}
    answer = client.post("/accounts/new", typed)
    assert answer["Location"].startswith("/accounts/of/openai-main?saved=")
    return client


def test_an_account_is_shown_changed_and_removed(ada: Any) -> None:
    assert '<a class="link" href="/breakers/search">search</a>' in ada.get("/accounts").content.decode()
    where = "/accounts/of/openai-main"
    change: dict[str, Any] = {"act": "change", "pools": "nothing", "hosts": "", "version": "1", **WHY}
    assert "There is no dependency" in page(ada.post(where, change), 422)
    assert ada.post(where, change | {"pools": []}).status_code == 302
    assert Account.objects.get().pools == []
    assert "saved openai-main while you were editing" in page(ada.post(where, change), 409)
    assert "already exists" in page(ada.post("/accounts/new", {"name": "openai-main", **WHY}), 422)
    assert "Use 1 to 64 letters" in page(ada.post("/accounts/new", {"name": "a/b", **WHY}), 422)
    assert "Enter a name" in page(ada.post("/accounts/new", {"name": "", **WHY}), 422)
    assert ada.post(where, {"act": "remove", "version": "2", **WHY}).status_code == 302
    assert ada.get(where).status_code == 404


def test_a_longer_name_is_another_account_or_budget(ada: Any) -> None:
    name = "a" * 64
    assert ada.post("/accounts/new", {"name": name, **WHY}).status_code == 302
    assert ada.get(f"/accounts/of/{name}").status_code == 200
    assert ada.get(f"/accounts/of/{name}b").status_code == 404
    assert ada.post("/budgets/money/new", new(account=name, name="b" * 40)).status_code == 302
    assert ada.get(f"/budgets/of/{'b' * 40}").status_code == 200
    assert ada.get(f"/budgets/of/{'b' * 65}").status_code == 404


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
    for less in ("50,000", "49999.999999", "0.004"):
        assert "The budget is 50,000.00 USD already" in page(ada.post(WHERE, raised | {"amount": less}), 422)
    assert "Raised to" not in page(ada.get(WHERE))
    assert ada.post(WHERE, raised).status_code == 302
    raised_page = text_of(page(ada.get(WHERE)))
    assert "60,000.00 USD per month Budget openai-main-month" in raised_page, "the heading is what applies"
    assert "Raised to 60,000.00 USD until" in raised_page
    assert "UTC, then 50,000.00 USD again." in raised_page
    assert "raised to 60,000.00 USD" in page(ada.get("/audit")).replace("<wbr>", "")
    ends = f"{Budget.objects.get().raised_until:%-d %b %Y %H:%M} UTC"
    for where in ("/changes", "/revisions"):
        said = text_of(ada.get(where).content.decode().replace("<wbr>", ""))
        assert f"Raised to none → 60,000.00 USD; Raised until none → {ends}" in said, where
        assert "+00:00" not in said
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


def ticked(html: str) -> list[str]:
    return re.findall(r'name="pools" value="([^"]*)" checked', html)


def test_the_pools_of_an_account_are_ticked_among_the_dependencies(ada: Any) -> None:
    """They were typed, one per line."""
    shown = ada.get("/accounts").content.decode()
    assert (shown.count('name="pools" value='), ticked(shown)) == (2, [])
    assert '<details class="panel part">' in shown, "the form is folded below a list"
    where = "/accounts/of/openai-main"
    assert ticked(ada.get(where).content.decode()) == ["search"]
    both = {"act": "change", "pools": ["payments-api", "search"], "hosts": "", "version": "1", **WHY}
    refused = ada.post(where, both | {"reason": ""})
    assert (refused.status_code, ticked(refused.content.decode())) == (422, ["payments-api", "search"])
    assert ada.post(where, both).status_code == 302
    assert Account.objects.get().pools == ["payments-api", "search"]
    new_one = {"name": "openai main", "pools": "search", **WHY}
    refused = ada.post("/accounts/new", new_one)
    assert ticked(refused.content.decode()) == ["search"]
    assert '<details class="panel part" open>' in refused.content.decode()


def test_the_page_of_a_budget_shows_what_is_spent_to_every_role(ada: Any, log_in: Any, limits: Any) -> None:
    ada.post("/budgets/money/new", new())
    spend(limits, keys.account_budget("production", "openai-main", "openai-main-month"), 41_000_000_000)
    (row,) = re.findall(r"<tr data-row.*?</tr>", ada.get(WHERE).content.decode(), re.DOTALL)
    assert text_of(row).startswith("openai-main 41,000.00 USD, 82 %")
    assert text_of(row).endswith("Above 80 %")
    assert "41,000.00 USD, 82 %" in text_of(log_in("vera").get(WHERE).content.decode())


def test_the_page_of_a_budget_of_a_tier_lists_its_busiest_tenants(ada: Any, limits: Any) -> None:
    of_tier = {"whose": "tier", "tier": "pro", "name": "pro-month"}
    assert ada.post("/budgets/money/new", new(**of_tier)).status_code == 302
    where = "/budgets/of/pro-month"
    assert "No tenant of this budget is among the busiest now." in page(ada.get(where))
    spend(limits, keys.tenant_budget("production", "acme-retail", "pro-month"), 2_000_000)
    asked = {"asked_per_s": 1.0, "refused_per_s": 0.0, "shadow_per_s": 0.0}
    put_figures(rules=[{"tenant": "acme-retail", "rule": "requests"} | asked])
    shown = text_of(page(ada.get(where)))
    assert "Spent by the busiest tenants of pro" in shown
    assert "acme-retail 2.00 USD" in shown


def test_every_form_of_a_budget_and_of_an_account_stands_below_its_own_heading(ada: Any) -> None:
    """Remove was a form without a name below the fields of another."""
    ada.post("/budgets/money/new", new())
    raised = {"act": "raise", "amount": "60000", "minutes": "60", "version": version(), **WHY}
    assert ada.post(WHERE, raised).status_code == 302
    for where, headings in (
        (WHERE, ["Raise for a time", "End the raise", "Change", "Remove budget"]),
        ("/accounts/of/openai-main", ["Pools and hosts", "Remove account"]),
    ):
        sections = ada.get(where).content.decode().partition("<main")[2].split("<section")
        forms = [one for one in sections if "<form" in one and 'name="act"' in one]
        assert [one.count('name="act"') for one in forms] == [1] * len(headings)
        assert [text_of(re.findall(r"<h2.*?</h2>", one)[0]) for one in forms] == headings


def test_an_amount_below_a_cent_is_not_shown_as_nothing(ada: Any, limits: Any) -> None:
    assert ada.post("/budgets/money/new", new(amount="0.004")).status_code == 302
    spend(limits, keys.account_budget("production", "openai-main", "openai-main-month"), 1_234)
    assert "0.004 USD per month 0.0012 USD, 30.9 %" in text_of(ada.get("/budgets").content.decode())
    assert "0.004 USD per month" in page(ada.get(WHERE))
    assert "0.004 USD per month" in page(ada.get("/accounts"))
    assert "amount 0.004 USD" in page(ada.get("/audit")).replace("<wbr>", "")


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
    assert "not enforce budgets" not in page(ada.get("/budgets"))
    old = Server.objects.filter(state=ServerState.ONLINE).order_by("name").first()
    assert old is not None
    Server.objects.filter(pk=old.pk).update(enforces_budgets=False)
    live = Server.objects.filter(state=ServerState.ONLINE).count()
    said = f"1 of {live} pods does not enforce budgets: their agents are older ({old.name}). Update them."
    assert said in page(ada.get("/budgets"))
    Server.objects.update(enforces_budgets=False)
    names = Server.objects.filter(state=ServerState.ONLINE).values_list("name", flat=True)
    said = f"{live} of {live} pods do not enforce budgets"
    assert said in page(ada.get("/budgets"))
    assert all(name in page(ada.get("/budgets")) for name in names)


def test_a_viewer_reads_and_changes_nothing(ada: Any, log_in: Any) -> None:
    assert ada.post("/budgets/money/new", new()).status_code == 302
    vera = log_in("vera")
    for address in (WHERE, "/accounts", "/accounts/of/openai-main"):
        assert "<form" not in vera.get(address).content.decode().split("<main")[1]
    assert vera.get("/budgets/money/new").status_code == 403
    assert vera.post(WHERE, {"act": "remove", "version": "1", **WHY}).status_code == 403
    assert vera.post("/accounts/new", {"name": "x", **WHY}).status_code == 403
