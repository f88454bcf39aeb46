"""The editor of one thing in a real browser: its clicks, the preview while typing, and Undo."""

from typing import Any

import pytest
from browsing import Clicks, becomes
from test_browser_dependency import pictures

from controlplane.editing import edits
from controlplane.policies.models import Tenant, TenantQuota, Tier, TierQuota
from tests.dashboard.editor_steps import put_demand
from tests.people import BOB

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WHY = "CHG-77 asked for by sales"


def quota(limit: int = 600, name: str = "requests") -> int:
    return edits.set_tier_quota(
        environment="production",
        tier="pro",
        quota=name,
        limit=limit,
        window_s=60,
        burst=100,
        expected_version=None,
        reason="limits of the contract",
        actor=BOB,
    )


def limit() -> int:
    return TierQuota.objects.get(tier__name="pro", name="requests").limit


def test_a_tier_quota_takes_three_clicks_with_a_preview_and_undo(sign_in: Any, production: str) -> None:
    quota()
    page = sign_in("ada")
    clicks = Clicks(page)
    clicks.in_side_bar("Limits", "Tiers")
    clicks.on("td.strong a:has-text('pro')")
    page.select_option("#f-limit-requests-algorithm", "fixed_window")
    assert not page.is_visible("#f-limit-requests-burst"), "a limit of the calendar has no burst"
    page.select_option("#f-limit-requests-algorithm", "token_bucket")
    assert page.is_visible("#f-limit-requests-burst")
    page.fill("#f-limit-requests-limit", "900")
    becomes(page, "document.querySelector('#preview').textContent.includes('(+50 %)')")
    pictures(page, "edit-tier")
    page.fill("#f-reason", WHY)
    clicks.on("text=Save changes")
    becomes(page, "document.querySelector('.saved')?.textContent.includes('applied it')")
    assert clicks.count == 3
    assert limit() == 900
    pictures(page, "edit-tier-saved")
    page.click("text=Undo")
    becomes(page, "document.querySelector('#f-limit-requests-limit')?.value === '600'")
    assert limit() == 600
    page.goto(page.url.partition("/edit")[0] + "/tiers")
    pictures(page, "tiers")


def test_a_tenant_quota_takes_three_clicks_from_the_overview_and_undo(sign_in: Any, production: str) -> None:
    quota()
    page = sign_in("ada")
    clicks = Clicks(page)
    clicks.on("#tenants a:has-text('acme-retail')")
    clicks.on("#q-requests a:has-text('Edit')")
    # The focus is in the limit: no click is needed before typing.
    becomes(page, "document.activeElement.id === 'f-limit-requests-limit'")
    page.keyboard.press("Control+A")
    page.keyboard.type("900")
    becomes(page, "document.querySelector('#preview').textContent.includes('(+50 %)')")
    page.fill("#f-reason", WHY)
    clicks.on("text=Save changes")
    becomes(page, "document.querySelector('.saved')?.textContent.includes('applied it')")
    assert clicks.count == 3
    row = TenantQuota.objects.get(tenant__key="acme-retail")
    assert (row.name, row.limit) == ("requests", 900)
    page.click("text=Undo")
    becomes(page, "document.querySelector('#q-requests')?.textContent.includes('tier pro')")
    assert not TenantQuota.objects.exists()


def test_a_tenant_is_suspended_in_three_clicks(sign_in: Any, production: str) -> None:
    page = sign_in("ada")
    clicks = Clicks(page)
    clicks.on("#tenants a:has-text('acme-retail')")
    pictures(page, "tenant")
    clicks.on("text=Suspend")
    becomes(page, "document.querySelector('#preview').textContent.includes('Suspended')")
    page.fill("#f-reason", WHY)
    clicks.on("text=Suspend tenant")
    becomes(page, "document.querySelector('.saved') !== null")
    assert clicks.count == 3
    assert Tenant.objects.get(key="acme-retail").suspended


def test_the_change_of_another_admin_appears_while_typing_and_both_stay(
    sign_in: Any, production: str
) -> None:
    quota()
    page = sign_in("ada")
    page.goto(page.url.rstrip("/") + "/edit/tier?key=pro")
    page.fill("#f-own-priority", "33")
    quota(5, "uploads")
    becomes(page, "document.querySelector('#theirs').textContent.includes('bob')")
    assert page.input_value("#f-own-priority") == "33"
    pictures(page, "edit-theirs")
    page.fill("#f-reason", WHY)
    page.click("text=Save changes")
    becomes(page, "document.querySelector('.saved') !== null")
    assert Tier.objects.get(name="pro").priority == 33
    assert TierQuota.objects.filter(tier__name="pro", name="uploads").exists()


def test_a_quota_is_edited_with_the_keyboard_alone(sign_in: Any, production: str) -> None:
    quota()
    page = sign_in("ada")
    page.goto(page.url.rstrip("/") + "/edit/tier?key=pro")
    page.focus("#f-limit-requests-limit")
    page.keyboard.press("Control+A")
    page.keyboard.type("901")
    for _ in range(60):
        if page.evaluate("document.activeElement.id") == "f-reason":
            break
        page.keyboard.press("Tab")
    page.keyboard.type(WHY)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").strip() == "Save changes"
    page.keyboard.press("Enter")
    becomes(page, "document.querySelector('.saved') !== null")
    assert limit() == 901


def test_two_admins_on_one_rate_choose_in_the_browser(sign_in: Any, production: str) -> None:
    quota()
    page = sign_in("ada")
    page.goto(page.url.rstrip("/") + "/edit/tier?key=pro")
    page.fill("#f-limit-requests-limit", "900")
    quota(700)
    page.fill("#f-reason", WHY)
    page.click("text=Save changes")
    becomes(page, "document.body.textContent.includes('bob changed the same values')")
    assert page.input_value("#f-limit-requests-limit") == "900"
    assert page.input_value("#f-reason") == WHY
    pictures(page, "edit-conflict")
    page.check("[name^='choice.'][value=replace]")
    page.click("text=Save changes")
    becomes(page, "document.querySelector('.saved') !== null")
    assert limit() == 900


def test_the_replay_appears_while_typing_with_a_chart(sign_in: Any, production: str) -> None:
    quota()
    put_demand()
    page = sign_in("ada")
    page.goto(page.url.rstrip("/") + "/edit/tenant?key=acme-retail")
    page.fill("#f-limit-requests-limit", "900")
    becomes(page, "document.querySelector('#preview svg.replay') !== null")
    pictures(page, "edit-replay")
    page.fill("#f-limit-requests-limit", "1200")
    becomes(page, "document.querySelector('#preview svg.replay')?.ariaLabel?.includes('1,200 per min')")
