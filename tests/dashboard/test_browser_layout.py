"""Sizes and places on a screen, from boxes and computed styles: what a review of pictures found."""

from datetime import timedelta
from typing import Any

import pytest
from browsing import is_live
from django.utils import timezone
from fleet_rows import breaker, put_server
from positions import boxes, boxes_of_all

from controlplane.alerts.lifecycle import AlertState
from tests.dashboard.test_alerts_page import alert

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

#: Stops of Tab up to the first in the content of a page, the link that skips them included.
MOST_TAB_STOPS = 20
#: Pixels of the page of a closed breaker, 1440 wide. With the lists that *History* now has, it was 2,600.
TALLEST_BREAKER = 2_000


def heights(page: Any, selector: str) -> set[float]:
    return {round(one.bounding_box()["height"]) for one in page.locator(selector).all() if one.is_visible()}


def test_a_single_card_fills_its_row(sign_in: Any, production: str) -> None:
    """Half of the row beside it was empty."""
    put_server("web-1", breakers=[breaker("payments-api", "open")])
    page = sign_in("olga")
    page.wait_for_selector("#cards .card:only-child")
    card, cards = boxes(page, "#cards .card", "#cards")
    assert card["width"] >= 0.95 * cards["width"]


def test_the_buttons_of_a_heading_are_of_one_height(sign_in: Any, production: str) -> None:
    """Save view was lower than the others."""
    page = sign_in("ada")
    page.goto("/breakers")
    page.wait_for_selector(".views > .btn:visible")
    assert page.locator(".verdict > .btn:visible").count() == 1
    assert len(heights(page, ".views > .btn, .verdict > .btn")) == 1


def test_the_buttons_of_a_row_do_not_touch_and_have_one_width(sign_in: Any, production: str) -> None:
    """*Force open* and *Reset* were one below the other without a gap, and of different widths."""
    put_server("web-1", breakers=[breaker("payments-api", "open")])
    page = sign_in("ada")
    page.goto("/breakers")
    row = "#row-payments-api .btn"
    page.wait_for_selector(f"{row} >> text=Reset")
    ((first, second),) = boxes_of_all(page, row)
    down, along = second["y"] - first["y"] - first["height"], second["x"] - first["x"] - first["width"]
    assert max(down, along) >= 6, (first, second)
    assert abs(first["width"] - second["width"]) < 1
    # Also in every other table: no two buttons of a cell are closer.
    for address in ("/breakers", "/tenants", "/runbooks", "/people", "/alerts/mutes"):
        page.goto(address)
        assert page.evaluate(_CLOSE) == [], address


#: Buttons of one cell with less than 4 px between them.
_CLOSE = """[...document.querySelectorAll('td')].flatMap(cell => {
  const boxes = [...cell.querySelectorAll('.btn:not(.bare)')].map(one => one.getBoundingClientRect())
    .filter(box => box.width);
  return boxes.slice(1).filter((box, at) => {
    const before = boxes[at];
    return Math.max(box.top - before.bottom, box.left - before.right) < 4;
  }).map(() => cell.innerText);
})"""


def test_few_tab_stops_come_before_the_content(sign_in: Any, production: str) -> None:
    """There were 30 without the link that skips them."""
    page = sign_in("ada")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    stops = 1
    while not page.evaluate("document.querySelector('main').contains(document.activeElement)"):
        page.keyboard.press("Tab")
        stops += 1
        assert stops <= MOST_TAB_STOPS


def test_the_page_of_a_breaker_leaves_lists_to_its_history(sign_in: Any, production: str) -> None:
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    is_live(page)
    assert page.evaluate("document.documentElement.scrollHeight") <= TALLEST_BREAKER


def test_what_protects_pods_is_beside_a_long_runbook_and_not_below_it(sign_in: Any, production: str) -> None:
    """The left column was empty for 1,000 pixels."""
    put_server("web-1", breakers=[breaker("payments-api", "open")])
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    page.wait_for_selector("#protection")
    page.evaluate("document.querySelector('.cols > aside').style.minHeight = '2400px'")
    charts, protection, aside = boxes(page, ".charts", "#protection", ".cols > aside")
    assert 0 < protection["y"] - charts["y"] - charts["height"] <= 20
    assert protection["x"] + protection["width"] < aside["x"]
    # On a phone, the form of the override comes before it.
    page.set_viewport_size({"width": 390, "height": 844})
    override, protection = boxes(page, "#override", "#protection")
    assert override["y"] < protection["y"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_shows_when_what_and_how_severe_a_resolved_alert_was(sign_in: Any, production: str) -> None:
    """Five columns of 60 pixels made the page 3,393 pixels long."""
    alert(state=AlertState.RESOLVED, resolved_at=timezone.now() - timedelta(minutes=1))
    page = sign_in("olga")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/alerts")
    row = page.locator("section:has(#h-past) tr[data-row]")
    for words in ("payments-api", "18 of 30 calls failed.", "Critical"):
        assert row.get_by_text(words).first.is_visible(), words
    assert row.locator("[data-th=Began]").is_visible()
    assert row.bounding_box()["height"] <= 150, "a few lines"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.locator("table:has(th:has-text('Began, UTC')) th:visible").count() == 5


def test_a_list_to_choose_from_is_as_wide_as_a_text(sign_in: Any, production: str) -> None:
    page = sign_in("ada")
    for path in ("/tokens", "/alerts/routes", "/alerts/mutes"):
        page.goto(path)
        fields = page.locator("main .field:visible:has(> select)").all()
        assert fields
        for field in fields:
            widths = [one.bounding_box()["width"] for one in (field, field.locator("select"))]
            assert abs(widths[0] - widths[1]) < 1, (path, field.inner_text())
