"""Opening several breakers at once: a result for each, and nothing that fails in silence."""

from typing import Any

import pytest
from browsing import becomes, is_live
from fleet_rows import breaker, notify, put_server

from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.breakers.overrides import end_override
from controlplane.errors import InvalidEdit
from dashboard.views.breakers import breaker_selection
from tests.dashboard.shown import text_of
from tests.people import OLGA

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/overrides/open"
WHY = "CHG-4821 the vendor is down"
BOTH = {"b": ["payments-api", "search"], "reason": WHY, "lasts": "15"}


def test_each_selected_breaker_gets_its_own_override_and_audit_entry(log_in, production):
    ticket = "https://tickets.example.com/browse/OPS-4821"
    answer = log_in("olga").post(PATH, BOTH | {"ticket": ticket})
    assert answer.status_code == 200
    assert "2 of 2 breakers forced open" in " ".join(answer.content.decode().split())
    held = Override.objects.filter(ended_at__isnull=True)
    assert {(one.dependency.name, one.mode, one.reason, one.ticket) for one in held} == {
        (name, "forced_open", WHY, ticket) for name in BOTH["b"]
    }
    entries = Entry.objects.filter(action="breaker.held")
    assert {entry.target_name for entry in entries} == set(BOTH["b"])
    assert len({entry.revision for entry in entries}) == 2


def test_the_preview_lists_every_breaker_and_what_its_callers_get(log_in, production):
    page = log_in("olga").get(f"{PATH}?b=payments-api&b=search&b=gone").content.decode()
    assert "Force open 2 breakers" in " ".join(page.split())
    assert "There is no dependency gone." in page
    assert not Override.objects.exists()


def test_the_preview_tells_what_is_open_already_apart(log_in, production):
    """It said "3 pods stop calling 2 dependencies" of breakers that were open."""
    put_server(breakers=[breaker("payments-api", "open", generation=2), breaker("search")])
    page = text_of(log_in("olga").get(f"{PATH}?b=payments-api&b=search").content.decode())
    assert "stop calling search within about 2 s." in page
    assert "payments-api is open already, and stays open until the override ends." in page
    assert "Sent and blocked/s" in page, "on Breakers, the two figures have columns of their own"


def test_one_that_fails_is_named_first_and_the_others_are_open(log_in, production, monkeypatch):
    real = breaker_selection.override_breaker

    def fails_for_search(**values: Any) -> int:
        if values["dependency"] == "search":
            raise InvalidEdit({"environment": ["It cannot be changed now."]})
        return real(**values)

    monkeypatch.setattr(breaker_selection, "override_breaker", fails_for_search)
    answer = log_in("olga").post(PATH, BOTH)
    assert answer.status_code == 409
    assert [(result.name, result.done) for result in answer.context["results"]] == [
        ("search", False),
        ("payments-api", True),
    ]
    text = answer.content.decode()
    assert "It cannot be changed now." in text
    assert 'href="/overrides/open?b=search"' in text


def test_a_breaker_that_another_operator_changed_meanwhile_is_not_replaced(log_in, production):
    client = log_in("olga")
    client.post(PATH, BOTH | {"b": ["search"]})
    answer = client.post(PATH, BOTH | {"seen-search": "0", "reason": "another reason of mine"})
    results = {result.name: result for result in answer.context["results"]}
    assert results["payments-api"].done
    assert "olga has changed it" in results["search"].said
    assert Override.objects.get(dependency__name="search").reason == WHY
    seen = Override.objects.get(dependency__name="search").revision
    end_override(environment="production", dependency="search", reason="the vendor is back", actor=OLGA)
    answer = client.post(PATH, BOTH | {"b": ["search"], "seen-search": str(seen)})
    assert "its override has ended" in answer.context["results"][0].said


def test_without_a_reason_nothing_is_opened(log_in, production):
    answer = log_in("olga").post(PATH, BOTH | {"reason": "short", "ticket": "javascript:alert(1)"})
    assert answer.status_code == 422
    assert {"reason", "ticket"} <= answer.context["form"].errors.keys()
    assert not Override.objects.exists()


@pytest.mark.parametrize("names", [[], [f"dependency-{number}" for number in range(51)]])
def test_the_number_of_selected_breakers_is_bounded(log_in, production, names):
    answer = log_in("olga").post(PATH, BOTH | {"b": names})
    assert answer.status_code == 422
    assert not Override.objects.exists()


def test_a_viewer_selects_nothing(log_in, production):
    client = log_in("vera")
    assert "open-selected" not in client.get("/breakers").content.decode()
    assert client.post(PATH, BOTH).status_code == 403
    assert not Override.objects.exists()


@pytest.mark.browser
def test_all_breakers_of_a_filter_are_selected_and_opened(sign_in: Any, production: str) -> None:
    page = sign_in("olga")
    page.goto("/breakers")
    is_live(page)
    page.fill("[data-filter]", "pay")
    page.check("[data-select-all]")
    assert page.is_checked("#sel-payments-api")
    assert not page.is_checked("#sel-search")
    # An update of the row and another order keep the selection.
    views = [breaker("payments-api", "open", generation=9, window_failures=31), breaker("search")]
    for number in (1, 2, 3):
        put_server(f"web-{number}", breakers=views)
    notify()
    becomes(page, "document.querySelector('#row-payments-api').textContent.includes('Open')")
    page.click("th button:has-text('Dependency')")
    page.click("th button:has-text('Dependency')")
    assert page.is_checked("#sel-payments-api")
    page.click("text=Open selected breakers")
    page.wait_for_url("**/overrides/open?b=payments-api")
    page.fill("[name=reason]", WHY)
    page.click("button:has-text('Force open 1 breaker')")
    becomes(page, "document.querySelector('h1').innerText.includes('1 of 1 breaker forced open')")
    assert Override.objects.get().dependency.name == "payments-api"


@pytest.mark.browser
def test_the_filter_and_the_order_of_a_table_are_in_its_address(sign_in: Any, production: str) -> None:
    page = sign_in("vera")
    page.goto("/breakers")
    is_live(page)
    order = "[...document.querySelectorAll('#rows tr')].map(row => row.id).join(' ')"
    page.click("th button:has-text('Dependency')")
    assert page.evaluate(order) == "row-payments-api row-search"
    page.click("th button:has-text('Dependency')")
    assert page.evaluate(order) == "row-search row-payments-api"
    assert page.get_attribute("th:has-text('Dependency')", "aria-sort") == "descending"
    page.fill("[data-filter]", "sea")
    page.click(".chip[data-kind=closed]")
    assert page.evaluate("location.search") == "?sort=-dependency&q=sea&state=closed"
    # A reload, as a shared link, shows the same; updates of the server do not undo it.
    page.reload()
    is_live(page)
    assert page.input_value("[data-filter]") == "sea"
    assert page.is_hidden("#row-payments-api")
    assert page.get_attribute(".chip[data-kind=closed]", "aria-pressed") == "true"
    page.fill("[data-filter]", "")
    assert page.evaluate(order) == "row-search row-payments-api"
    page.click("[data-pause]")
    page.click("[data-pause]")
    is_live(page)
    assert page.evaluate(order) == "row-search row-payments-api"
    page.goto("/servers?sort=-pod&q=web-2")
    is_live(page)
    assert page.is_visible("#srv-web-2")
    assert page.is_hidden("#srv-web-1")
