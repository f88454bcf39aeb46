"""Tables in the browser: order and filter in the address, "Back", CSV of what is shown, copy, and print."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from browsing import becomes, is_live
from fleet_rows import breaker, notify, put_figures, put_server

from controlplane.editing import edits
from tests.people import ADA

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def shown(page: Any, heading: str) -> list[str]:
    rows = f"section[aria-labelledby={heading}] tbody tr:not([hidden])"
    found: list[str] = page.locator(rows).evaluate_all(
        "rows => rows.map(row => (row.querySelector('a') || row.cells[0]).textContent.trim())"
    )
    return found


def downloaded(page: Any, heading: str) -> list[list[str]]:
    with page.expect_download() as coming:
        page.click(f"section[aria-labelledby={heading}] a.csv")
    return list(csv.reader(io.StringIO(Path(coming.value.path()).read_text())))


def test_rows_of_bulkheads_keep_their_place_under_the_pointer(sign_in: Any, production: str) -> None:
    """A dependency that began to refuse moved all rows: its name was one cell of three of them."""

    def refuse(full_per_s: float) -> None:
        free = {"standard": {"limit": 150, "active": 2}}
        full = {"standard": {"limit": 150, "active": 150, "full_per_s": full_per_s}}
        put_figures(
            protection={
                "payments-api": {"callers": 3, "tiers": free},
                "search": {"callers": 3, "tiers": full if full_per_s else free},
            }
        )
        notify()

    refuse(0)
    page = sign_in("vera")
    page.goto("/bulkheads")
    is_live(page)
    first = "document.querySelector('#rows tr').id"
    assert page.evaluate(first) == "r-payments-api-critical"
    page.hover("#r-payments-api-standard")
    refuse(5)
    page.wait_for_selector("#r-search-standard.st-warn")
    assert page.evaluate(first) == "r-payments-api-critical"
    page.mouse.move(0, 0)
    becomes(page, f"{first} === 'r-search-critical'")
    names = page.locator("#rows td.strong").all_inner_texts()
    assert names == ["search"] * 3 + ["payments-api"] * 3


def test_rows_of_locks_keep_their_place_under_the_pointer(sign_in: Any, production: str) -> None:
    for number in (1, 2):
        put_server(f"web-{number}", primitives={"locks": {"acquired": 40}})
    page = sign_in("vera")
    page.goto("/locks")
    is_live(page)
    rows = "[...document.querySelectorAll('#rows tr')].map(row => row.id).join()"
    assert page.evaluate(rows) == "l-,l-web-1,l-web-2"
    page.hover("#l-web-1")
    put_server("web-2", primitives={"locks": {"acquired": 40, "lost": 3}})
    notify()
    page.wait_for_selector("#l-web-2.st-warn")
    assert page.evaluate(rows) == "l-,l-web-1,l-web-2"
    page.mouse.move(0, 0)
    becomes(page, f"{rows} === 'l-,l-web-2,l-web-1'")


def test_back_undoes_the_order_of_a_table(sign_in: Any) -> None:
    page = sign_in("ada")
    page.goto("/tiers")
    before = shown(page, "h-t")
    page.get_by_role("button", name="Tier", exact=True).click()
    page.wait_for_url("**/tiers?sort=tier")
    assert shown(page, "h-t") == sorted(before) != before
    assert [row[0].split()[0] for row in downloaded(page, "h-t")[1:]] == sorted(before)
    page.go_back()
    page.wait_for_url("**/tiers")
    assert shown(page, "h-t") == before
    page.goto("/tiers?sort=-tier")
    assert shown(page, "h-t") == sorted(before, reverse=True)


def test_the_filter_of_a_live_list_is_in_its_file(sign_in: Any) -> None:
    page = sign_in("vera")
    page.goto("/servers")
    is_live(page)
    page.fill("[data-filter]", "web-2")
    put_server("web-4", breakers=[breaker("payments-api"), breaker("search")])
    notify()
    page.wait_for_selector("#srv-web-4", state="attached")
    assert shown(page, "h-s") == ["web-2"]
    assert [row[0] for row in downloaded(page, "h-s")[1:]] == ["web-2"]
    page.get_by_role("button", name="Silent", exact=True).click()
    page.wait_for_url(re.compile("state=silent"))
    page.go_back()
    becomes(page, "!location.search.includes('state')")
    assert shown(page, "h-s") == ["web-2"]


@pytest.mark.parametrize(
    ("address", "columns"),
    [
        ("/budgets", ("payments-api", "acme-retail", "daily", "Edit")),
        ("/revisions", ("ada", "The contract says so", "Revert")),
        ("/audit", ("ada", "The contract says so")),
        ("/breakers", ("payments-api", "Failures", "Force open")),
        ("/tenants", ("acme-retail", "Edit")),
    ],
)
def test_a_phone_has_the_columns_that_decide(sign_in: Any, address: str, columns: tuple[str, ...]) -> None:
    put_server()
    edits.set_tenant_quota(
        environment="production", tenant="acme-retail", quota="daily", dependency="payments-api",
        algorithm="fixed_window", period="day", window_s=86_400, limit=1_000, expected_version=None,
        reason="The contract says so", actor=ADA,
    )  # fmt: skip
    page = sign_in("ada")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address)
    row = page.locator("tr[data-row]:visible").filter(has_text=columns[0]).first
    # A label that a style sheet adds is no text: the test reads it from the page.
    words = row.inner_text() + " ".join(
        row.locator("[data-th]:visible").evaluate_all("cells => cells.map(cell => cell.dataset.th)")
    )
    assert [column for column in columns if column not in words] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    beyond = "cells => cells.filter(cell => cell.getBoundingClientRect().right > 390).length"
    assert row.locator("td:visible").evaluate_all(beyond) == 0


def tenants_of(*figures: tuple[str, float]) -> list[dict[str, Any]]:
    return [
        {"tenant": name, "requests_per_s": 60.0, "refused_per_s": refused_per_s}
        for name, refused_per_s in figures
    ]


def test_rows_of_the_overview_keep_their_place_under_the_pointer(sign_in: Any) -> None:
    """A newcomer clicked globex, and got acme-retail."""
    put_figures(tenants=tenants_of(("acme-retail", 5.0), ("globex", 4.0), ("initech", 3.0)))
    page = sign_in("vera")
    is_live(page)
    names = "[...document.querySelectorAll('#tenants tr')].map(row => row.querySelector('a').textContent)"
    becomes(page, f"{names}.join() === 'acme-retail,globex,initech'")
    page.hover("#tenants tr:nth-child(2) a")
    put_figures(tenants=tenants_of(("umbrella", 9.0), ("globex", 8.0), ("initech", 1.0)))
    notify()
    becomes(page, "document.querySelector('#tenants').textContent.includes('umbrella')")
    assert page.evaluate(names) == ["acme-retail", "globex", "initech", "umbrella"]
    becomes(page, "document.querySelector('#tenants tr:nth-child(2)').textContent.includes('8')")
    assert page.locator("#tenants .is-old").all_inner_texts()[0].startswith("acme-retail")
    page.mouse.move(5, 5)
    becomes(page, f"{names}.join() === 'umbrella,globex,initech'")
    assert page.locator("#tenants .is-old").count() == 0


def test_cards_of_breakers_keep_their_place_while_one_has_the_focus(sign_in: Any) -> None:
    put_server(breakers=[breaker("payments-api", "half_open", generation=2), breaker("search")])
    page = sign_in("olga")
    is_live(page)
    page.focus("#br-payments-api a:has-text('Reset')")
    put_server(
        breakers=[breaker("payments-api", "half_open", generation=2), breaker("search", "open", generation=2)]
    )
    notify()
    page.wait_for_selector("#br-search")
    first = "document.querySelector('#cards > article').id"
    assert page.evaluate(first) == "br-payments-api"
    page.evaluate("document.activeElement.blur()")
    becomes(page, f"{first} === 'br-search'")


def test_a_name_is_copied_from_its_row(sign_in: Any) -> None:
    page = sign_in("vera")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/breakers")
    # The first message draws every row again, without the button.
    is_live(page)
    page.focus("#row-payments-api a")
    page.keyboard.press("c")
    becomes(page, "document.querySelector('#announce').textContent === 'Copied: payments-api'")
    assert page.evaluate("navigator.clipboard.readText()") == "payments-api"
    page.hover("#row-search td.strong")
    button = page.query_selector("#row-search .copy")
    button.click()
    becomes(page, "document.querySelector('#announce').textContent === 'Copied: search'")
    # A live update may draw the row again: the tick stays.
    becomes(page, "document.querySelector('#row-search .copy')?.dataset.done === ''")
    page.evaluate("document.querySelector('#row-search .copy').remove()")
    page.hover("#row-search .num >> nth=0")
    page.hover("#row-search td.strong")
    becomes(page, "document.querySelector('#row-search .copy')?.dataset.done === ''")
    page.hover("#row-payments-api td.strong")
    becomes(page, "document.querySelector('#row-payments-api .copy:not([data-done])')")
    assert page.evaluate("navigator.clipboard.readText()") == "search"


def test_a_printed_page_has_its_tables_and_no_controls(sign_in: Any) -> None:
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    page.emulate_media(media="print")
    assert page.is_visible("#h-ag")
    for hidden in ("#nav", ".bar", "#override", ".chart-tools button", "a.csv"):
        assert page.locator(f"{hidden} >> visible=true").count() == 0, hidden
    colours = "getComputedStyle(document.body)"
    found = page.evaluate(f"[{colours}.backgroundColor, {colours}.color]")
    assert found == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
