"""Saving the view of a list and opening it, with clicks."""

from typing import Any

import pytest
from browsing import Clicks, becomes, is_live

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

SHOWN = "[...document.querySelectorAll('#rows tr:not([hidden])')].map(row => row.id).join()"


def test_a_view_is_saved_opened_shared_renamed_and_deleted(sign_in: Any) -> None:
    page = sign_in("olga")
    page.goto("/breakers")
    is_live(page)
    clicks = Clicks(page)
    # The filter changes the address without a request: the form has it nevertheless.
    page.fill("[data-filter]", "pay")
    becomes(page, f"{SHOWN} === 'row-payments-api' && location.search === '?q=pay'")
    clicks.on(".views >> text=Save view")
    becomes(page, "document.activeElement.id === 'f-name'")
    assert page.input_value("#f-address") == "/breakers?q=pay"
    page.keyboard.type("Payments")
    clicks.on("button[value=save]")
    page.wait_for_url("**/breakers?q=pay")
    becomes(page, f"{SHOWN} === 'row-payments-api'")
    assert clicks.count == 2
    # From the whole list, one click opens it.
    page.goto("/breakers")
    page.click(".views >> text=Payments")
    page.wait_for_url("**/breakers?q=pay")
    becomes(page, f"{SHOWN} === 'row-payments-api'")
    page.click(".views >> text=Edit views")
    page.click("section[aria-labelledby=h-own] >> text=Change")
    page.fill("#f-name", "Payment breakers")
    page.check("[name=shared]")
    page.click("button[value=change]")
    page.wait_for_url("**/views")
    assert "everyone" in page.inner_text("section[aria-labelledby=h-own] tbody")
    # Another person finds it in the palette, from any page, and cannot change it.
    page = sign_in("vera")
    page.keyboard.press("Control+k")
    page.keyboard.type("payment breakers")
    becomes(page, "document.querySelector('[role=option]')?.textContent.includes('View of Breakers')")
    page.keyboard.press("Enter")
    page.wait_for_url("**/breakers?q=pay")
    page.goto("/views")
    assert not page.is_visible("text=Stop sharing")
    page = sign_in("olga")
    page.goto("/views")
    page.click("section[aria-labelledby=h-own] >> text=Change")
    page.click("button[value=delete]")
    page.wait_for_url("**/views")
    assert page.is_visible("text=None yet")
    page.goto("/breakers")
    assert page.locator(".views a").all_inner_texts() == ["Save view"]
