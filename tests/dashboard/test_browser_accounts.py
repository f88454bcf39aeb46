"""Accounts in a real browser, which reports what the content security policy blocks."""

import os
import re
import time
from typing import Any

from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from browsing import becomes

from controlplane.accounts.models import User
from tests.people import PASSWORD
from tests.waiting import wait_until


def picture(page: Any, name: str) -> None:
    """Save a screenshot for people: PICTURES_OF_TESTS names a folder."""
    if folder := os.environ.get("PICTURES_OF_TESTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_an_admin_invites_a_person_and_issues_tokens(page: Any, sign_in: Any, web: str) -> None:
    picture_of_login(page)
    sign_in("ada")
    page.goto("/people")
    page.fill("#f-username", "otto")
    page.select_option("#f-role", "operator")
    page.fill("#f-reason", "joins the people on call")
    page.click("text=Create invitation")
    link = page.inner_text("code.secret")
    picture(page, "people")
    assert link.startswith(f"{web}/welcome/")
    page.click("a:text-is('otto')")
    page.wait_for_selector("#f-why")
    picture(page, "person")
    page.goto("/tokens")
    page.fill("#f-name", "pods of the shop")
    page.fill("#f-reason", "the shop moves in")
    page.click("button:text-is('Create an agent token')")
    token = page.inner_text("code.secret")
    assert re.fullmatch(r"fb_[0-9a-f]{16}_[0-9a-f]{64}", token)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.focus("button[data-copies]")
    page.keyboard.press("Enter")
    page.wait_for_selector("button[data-copies]:text-is('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == token
    becomes(page, "document.querySelector('[data-copies]').textContent === 'Copy the token'")
    page.click("summary:has-text('Rotate or revoke')")
    picture(page, "tokens")
    page.goto("/audit?by=people")
    picture(page, "audit")
    assert page.is_visible("a:text-is('CSV')")


def picture_of_login(page: Any) -> None:
    page.goto("/login")
    picture(page, "login")


def test_a_second_factor_is_set_up_and_required(page: Any, sign_in: Any) -> None:
    sign_in("olga")
    page.goto("/account")
    picture(page, "account")
    page.click("text=Add one")
    page.fill("#id_password", PASSWORD)
    picture(page, "again")
    page.click("button[type=submit]")
    secret = page.inner_text("code.secret")
    wait_until(lambda: page.evaluate("document.querySelector('.qr').naturalWidth") > 0)
    picture(page, "second-factor")
    page.fill("#id_code", code_of(secret))
    page.click("button[type=submit]")
    page.wait_for_selector(".codes li")
    picture(page, "recovery-codes")
    assert page.locator(".codes li").count() == 10
    # A page without charts: their requests would still be on the way after the logout, and get 401.
    page.goto("/account")
    page.click("summary.avatar")
    page.click("text=Log out")
    page.wait_for_url("**/login**")
    page.fill("#id_username", "olga")
    page.fill("#id_password", PASSWORD)
    page.click("button[type=submit]")
    page.wait_for_url("**/login/code")
    picture(page, "code")
    page.fill("#id_code", code_of(secret))
    page.click("button[type=submit]")
    page.wait_for_selector("header.bar")
    assert User.objects.get(username="olga").logins.filter(ended_at__isnull=True).count() == 1


def code_of(secret: str) -> str:
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30))


def test_logging_out_in_one_tab_ends_the_other(page: Any, sign_in: Any) -> None:
    sign_in("olga")
    other = page.context.new_page()
    other.goto("/servers")
    wait_until(lambda: other.inner_text("#live").startswith("Live"))
    page.click("summary.avatar")
    page.click("text=Log out")
    # Its socket is closed, so the page asks for a login.
    other.wait_for_url("**/login**")
