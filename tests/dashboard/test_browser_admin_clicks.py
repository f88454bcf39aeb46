"""The clicks of further tasks, from the overview: what operators do less often, and what admins edit.

Reasons are typed besides, and so are values.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from browsing import Clicks, becomes
from fleet_rows import breaker, put_server
from rows_everywhere import put_suggestions
from test_browser_pages import WIDE, looked_at

from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.drills.models import Drill
from controlplane.policies.models import Dependency, Runbook, Tenant, TenantQuota, VendorLimit
from controlplane.schedules.models import Schedule
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WHY = "CHG-4821 vendor maintenance"
CARD = "#cards a:has-text('payments-api'), #calm a:has-text('payments-api')"


@pytest.mark.parametrize(
    ("begin", "reset"),
    [("/", "#br-payments-api a:has-text('Reset')"), ("/breakers", "#row-payments-api a:has-text('Reset')")],
)
def test_an_operator_resets_a_breaker_in_two_clicks(
    sign_in: Any, production: str, begin: str, reset: str
) -> None:
    put_server("web-1", breakers=[breaker("payments-api", "open")])
    page = sign_in("olga")
    page.goto(begin)
    clicks = Clicks(page)
    clicks.on(reset)
    clicks.page.fill("#override [name=reason]", WHY)
    clicks.on("#preview button")
    wait_until(lambda: Entry.objects.filter(action="breaker.reset").exists(), "the breaker is reset")
    assert clicks.count == 2


def test_an_operator_forces_a_breaker_closed_in_three_clicks(sign_in: Any, production: str) -> None:
    put_server()
    clicks = Clicks(sign_in("olga"))
    clicks.on(CARD)
    clicks.on("label:has(input[name=act][value=forced_closed])")
    # A duration that is allowed is chosen already; the name confirms that calls reach a failing vendor.
    clicks.page.fill("#override [name=reason]", WHY)
    clicks.page.fill("#override [name=confirm]", "payments-api")
    clicks.on("#preview button")
    wait_until(lambda: Override.objects.exists(), "the breaker is forced closed")
    assert clicks.count == 3


def test_an_admin_edits_the_policy_of_a_breaker_in_three_clicks(sign_in: Any, production: str) -> None:
    put_server()
    clicks = Clicks(sign_in("ada"))
    clicks.on(CARD)
    clicks.on("nav.tabs >> text=Settings")
    clicks.page.fill("[name='breaker.open_ms']", "45000")
    clicks.page.fill("#dependency-form [name=reason]", WHY)
    clicks.on("#dependency-form button[type=submit]")
    wait_until(lambda: Dependency.objects.get(name="payments-api").open_ms == 45_000, "the policy is saved")
    assert clicks.count == 3


def test_an_admin_edits_a_vendor_limit_in_three_clicks(sign_in: Any, production: str) -> None:
    put_server()
    clicks = Clicks(sign_in("ada"))
    clicks.on(CARD)
    clicks.on("nav.tabs >> text=Limits")
    clicks.page.fill("[name='new.name']", "contract")
    clicks.page.fill("[name='new.limit']", "900")
    clicks.page.fill("[name='new.window_s']", "60")
    clicks.page.fill("#f-reason", WHY)
    clicks.on("text=Save changes")
    wait_until(lambda: VendorLimit.objects.filter(limit=900).exists(), "the vendor limit is saved")
    assert clicks.count == 3


def test_an_admin_adopts_a_suggestion_in_two_clicks(sign_in: Any, production: str) -> None:
    put_suggestions()
    page = sign_in("ada")
    page.goto("/breakers/payments-api")
    clicks = Clicks(page)
    # The form is filled in, and so is the reason, with the evidence.
    clicks.on("#vendor a:has-text('Use 600')")
    assert page.input_value("[name='limit.contract.limit']") == "600"
    clicks.on("text=Save changes")
    wait_until(lambda: VendorLimit.objects.filter(limit=600).exists(), "the vendor limit is saved")
    assert clicks.count == 2
    reason = Entry.objects.filter(target_name="payments-api").latest("pk").reason
    assert reason.startswith("In 1,000 answers to 2 pods since ")
    page.goto("/breakers/payments-api")
    assert not page.query_selector("#vendor a:has-text('Use 600')"), "it is used"


def test_an_admin_declines_a_suggestion_with_a_reason(sign_in: Any, production: str) -> None:
    put_suggestions()
    page = sign_in("ada")
    page.goto("/breakers/payments-api")
    clicks = Clicks(page)
    page.set_viewport_size({"width": 390, "height": 844})
    assert looked_at(page, "breaker") == []
    assert not page.evaluate(WIDE)
    clicks.on("#offer-contract-limit a:has-text('Not this one')")
    assert looked_at(page, "decline_suggestion") == []
    page.fill("[name=reason]", WHY)
    clicks.on("form.form button[type=submit]")
    page.wait_for_selector("#vendor >> text=Declined by ada")
    assert clicks.count == 2
    assert not page.query_selector("#offer-contract-limit")


def test_an_admin_schedules_the_policy_of_a_breaker_in_three_clicks(sign_in: Any, production: str) -> None:
    put_server()
    clicks = Clicks(sign_in("ada"))
    clicks.on(CARD)
    clicks.on("nav.tabs >> text=Settings")
    clicks.page.fill("[name='breaker.open_ms']", "45000")
    clicks.page.fill("[name=starts]", f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}")
    clicks.page.fill("#dependency-form [name=reason]", WHY)
    clicks.on("#dependency-form button[type=submit]")
    clicks.page.wait_for_url("**/schedules")
    assert clicks.count == 3
    planned = Schedule.objects.get().document
    assert planned["dependencies"] == {"payments-api": {"breaker": {"open_ms": 45_000}}}


def test_an_admin_adds_a_tenant_in_three_clicks(sign_in: Any, production: str) -> None:
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Limits", "Tenants")
    clicks.on("text=Add tenant")
    clicks.page.fill("#edit-form [name=name]", "initech")
    clicks.page.select_option("[name='own.tier']", "pro")
    clicks.page.fill("#f-reason", WHY)
    clicks.on("#edit-form button[value=save]")
    wait_until(lambda: Tenant.objects.filter(key="initech").exists(), "the tenant is added")
    assert clicks.count == 3


def test_an_admin_adds_a_daily_budget_in_three_clicks(sign_in: Any, production: str) -> None:
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Limits", "Budgets")
    clicks.on("text=Add budget of calls or tokens")
    # The period is a day, and the budget of one tenant, until another is chosen.
    clicks.page.fill("#budget-form [name=tenant]", "acme-retail")
    clicks.page.fill("#budget-form [name=limit]", "1000")
    clicks.page.fill("#budget-form [name=reason]", WHY)
    assert not clicks.page.is_visible("#f-tier")
    clicks.on("#budget-form button[type=submit]")
    clicks.page.wait_for_selector(".saved >> text=Undo")
    assert TenantQuota.objects.filter(period="day", limit=1_000).exists()
    assert clicks.count == 3


def moved_and_suspended() -> bool:
    tenant = Tenant.objects.get(key="acme-retail")
    return tenant.tier.name == "free" and tenant.suspended


def test_an_admin_suspends_and_moves_a_tenant_in_two_clicks(sign_in: Any, production: str) -> None:
    clicks = Clicks(sign_in("ada"))
    clicks.on("#tenants tr:has-text('acme-retail') a:has-text('Edit')")
    clicks.page.select_option("[name='own.tier']", "free")
    clicks.page.select_option("[name='own.suspended']", "yes")
    clicks.page.fill("#f-reason", WHY)
    clicks.on("#edit-form button[value=save]")
    wait_until(moved_and_suspended, "the tenant is moved and suspended")
    assert clicks.count == 2


def test_an_admin_suspends_and_moves_a_tenant_of_the_list_in_two_clicks(
    sign_in: Any, production: str
) -> None:
    page = sign_in("ada")
    page.goto("/tenants")
    clicks = Clicks(page)
    clicks.on("tr:has-text('acme-retail') a:has-text('Edit')")
    page.select_option("[name='own.suspended']", "yes")
    page.select_option("[name='own.tier']", "free")
    page.fill("#f-reason", WHY)
    clicks.on("#edit-form button[value=save]")
    wait_until(moved_and_suspended, "the tenant is moved and suspended")
    assert clicks.count == 2


def test_an_admin_suspends_and_resumes_a_tenant_of_the_list_in_two_clicks_each(
    sign_in: Any, production: str
) -> None:
    page = sign_in("ada")
    for act, suspended in (("Suspend", True), ("Resume", False)):
        page.goto("/tenants")
        clicks = Clicks(page)
        clicks.on(f"tr:has-text('acme-retail') a:has-text('{act}')")
        page.fill("#f-reason", WHY)
        clicks.on(f"text={act} tenant")
        wait_until(
            lambda on=suspended: Tenant.objects.get(key="acme-retail").suspended == on, f"{act} is saved"
        )
        page.wait_for_selector(".saved >> text=Undo")
        assert clicks.count == 2


def test_an_admin_suspends_a_tenant_by_the_page_tenants_in_three_clicks(
    sign_in: Any, production: str
) -> None:
    clicks = Clicks(sign_in("ada"))
    # Tenants is the first page of its section: a click on the section opens it, also without a pointer.
    clicks.on("#nav > ul > li > a:has-text('Limits')")
    clicks.page.wait_for_url("**/tenants")
    clicks.on("tr:has-text('acme-retail') a:has-text('Suspend')")
    clicks.page.fill("#f-reason", WHY)
    clicks.on("#edit-form button[value=save]")
    wait_until(lambda: Tenant.objects.get(key="acme-retail").suspended, "the tenant is suspended")
    assert clicks.count == 3


def test_an_admin_edits_selected_tenants_in_four_clicks(sign_in: Any, production: str) -> None:
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Limits", "Tenants")
    clicks.on("[data-select-all]")
    clicks.on("text=Edit selected tenants")
    clicks.page.select_option("[name=what]", "suspend")
    # The preview draws itself. Before it is there, saving only shows it.
    clicks.page.wait_for_selector("#preview h2:has-text('would change')")
    clicks.page.fill("[name=reason]", WHY)
    clicks.on("button[value=save]")
    wait_until(lambda: Tenant.objects.get(key="acme-retail").suspended, "the selected tenants are suspended")
    assert clicks.count == 4


def test_an_admin_applies_a_file_in_two_clicks(sign_in: Any, production: str) -> None:
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Changes", "Import")
    plan = b"tenants:\n  acme-retail:\n    tier: free\n"
    clicks.page.set_input_files(
        "#f-file", {"name": "contracts.yaml", "mimeType": "application/yaml", "buffer": plan}
    )
    clicks.page.fill("[name=reason]", WHY)
    clicks.on("main form button.primary[type=submit]")
    wait_until(lambda: Tenant.objects.get(key="acme-retail").tier.name == "free", "the file is applied")
    assert clicks.count == 2


def test_an_admin_starts_a_drill_of_one_pod_in_three_clicks(sign_in: Any, production: str) -> None:
    put_server("web-1")
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Fleet", "Drills")
    clicks.on("label:has(input[name=servers][value=web-1])")
    clicks.page.fill("[name=reason]", WHY)
    clicks.on("text=Start drill")
    wait_until(lambda: Drill.objects.exists(), "the drill is started")
    assert clicks.count == 3


def test_a_tenant_is_found_without_a_click_and_a_runbook_takes_one(sign_in: Any, production: str) -> None:
    put_server("web-1", breakers=[breaker("payments-api", "open")])
    clicks = Clicks(sign_in("vera"))
    clicks.page.wait_for_load_state()
    clicks.page.keyboard.press("Control+k")
    clicks.page.keyboard.type("acme-retail")
    becomes(clicks.page, "document.querySelector('dialog[open]')?.textContent.includes('acme-retail')")
    clicks.page.keyboard.press("Enter")
    clicks.page.wait_for_url("**/tenant*acme-retail*")
    assert clicks.count == 0
    clicks.page.go_back()
    clicks.on("#conditions [data-runbook] >> nth=0")
    clicks.page.wait_for_url("**/runbooks/*")
    assert clicks.count == 1


def test_an_admin_edits_a_runbook_in_three_clicks(sign_in: Any, production: str) -> None:
    clicks = Clicks(sign_in("ada"))
    clicks.in_side_bar("Incidents", "Runbooks")
    clicks.on("a:has-text('Edit Payment provider timeouts')")
    clicks.page.fill("[name=title]", "Payments time out")
    clicks.page.fill("#runbook-form [name=reason]", WHY)
    clicks.on("#runbook-form button[value=save]")
    wait_until(lambda: Runbook.objects.filter(title="Payments time out").exists(), "the runbook is saved")
    assert clicks.count == 3
