"""The clicks of each task of an operator and an admin, from the overview; reasons are typed besides."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from browsing import Clicks, becomes
from editor_steps import ACME, head
from fleet_rows import breaker, put_server
from refused_samples import FIRST, put_samples

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.rules import set_approvals
from controlplane.breakers.models import Override
from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.policies.models import TenantQuota
from controlplane.refusals.samples import token_of
from fuseboard.contract.words import OverrideMode
from tests.people import BOB, OLGA
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WHY = "CHG-4821 vendor maintenance"


def forced_open(minutes: int = 10) -> Override:
    override_breaker(
        environment="production",
        dependency="payments-api",
        mode=OverrideMode.FORCED_OPEN,
        reason=WHY,
        expires_at=datetime.now(UTC) + timedelta(minutes=minutes),
        actor=OLGA,
    )
    return Override.objects.get()


def in_force() -> Any:
    return Override.objects.filter(ended_at__isnull=True).first()


def test_an_operator_trips_a_breaker_in_four_clicks(sign_in: Any, production: str) -> None:
    put_server()
    clicks = Clicks(sign_in("olga"))
    clicks.on("#cards a:has-text('payments-api'), #calm a:has-text('payments-api')")
    clicks.on("label:has(input[name=act][value=forced_open])")
    clicks.on("label:has(input[name=lasts][value='15'])")
    clicks.page.fill("#override [name=reason]", WHY)
    becomes(clicks.page, "document.querySelector('#preview button').innerText.includes('15')")
    clicks.on("#preview button")
    becomes(clicks.page, "document.querySelector('#hero').innerText.toLowerCase().includes('forced open')")
    assert clicks.count == 4
    left = Override.objects.get().expires_at - datetime.now(UTC)
    assert timedelta(minutes=13) < left <= timedelta(minutes=15)


def test_an_operator_trips_a_closed_breaker_for_ten_minutes_from_the_list_in_four_clicks(
    sign_in: Any, production: str
) -> None:
    put_server()
    clicks = Clicks(sign_in("olga"))
    clicks.on("a.more[href$='/breakers']")
    clicks.on("#row-payments-api a:has-text('Force open')")
    clicks.on("label:has(input[name=lasts][value='10'])")
    clicks.page.fill("#override [name=reason]", WHY)
    becomes(clicks.page, "document.querySelector('#preview button').innerText.includes('10 min')")
    clicks.on("#preview button")
    becomes(clicks.page, "document.querySelector('#hero').innerText.toLowerCase().includes('forced open')")
    assert clicks.count == 4
    left = Override.objects.get().expires_at - datetime.now(UTC)
    assert timedelta(minutes=9) < left <= timedelta(minutes=10)


def test_an_operator_trips_a_breaker_of_a_card_for_ten_minutes_in_three_clicks(
    sign_in: Any, production: str
) -> None:
    put_server(breakers=[breaker("payments-api", state="open")])
    clicks = Clicks(sign_in("olga"))
    clicks.on("#br-payments-api a:has-text('Force open')")
    clicks.on("label:has(input[name=lasts][value='10'])")
    clicks.page.fill("#override [name=reason]", WHY)
    clicks.on("#preview button")
    wait_until(in_force, "the breaker is forced open")
    assert clicks.count == 3


def test_an_operator_extends_an_override_in_two_clicks(sign_in: Any, production: str) -> None:
    before = forced_open().expires_at
    clicks = Clicks(sign_in("olga"))
    clicks.on("#held a:has-text('Extend')")
    clicks.page.fill("#override [name=reason]", WHY)
    clicks.on("#preview button")
    wait_until(lambda: in_force().expires_at > before, "the override is extended")
    assert clicks.count == 2


def test_an_override_that_ends_soon_is_extended_in_two_clicks_and_nothing_is_typed(
    sign_in: Any, production: str
) -> None:
    before = forced_open(minutes=4).expires_at
    Override.objects.update(created_at=datetime.now(UTC) - timedelta(minutes=20))
    clicks = Clicks(sign_in("olga"))
    clicks.on("#ending-payments-api a:has-text('Extend')")
    clicks.on("#preview button")
    wait_until(lambda: in_force().expires_at > before, "the override is extended")
    assert clicks.count == 2
    assert in_force().reason == WHY
    becomes(clicks.page, "!document.querySelector('#ending-payments-api')")


def test_an_operator_ends_an_override_in_two_clicks(sign_in: Any, production: str) -> None:
    forced_open()
    clicks = Clicks(sign_in("olga"))
    clicks.on("#held a[href*='act=automatic']")
    clicks.page.fill("#override [name=reason]", WHY)
    clicks.on("#preview button")
    wait_until(lambda: not in_force(), "the override is ended")
    assert clicks.count == 2


def test_who_is_in_fallback_and_why_takes_one_click(sign_in: Any, production: str) -> None:
    put_server("web-7", mode="local", mode_cause="connection refused")
    clicks = Clicks(sign_in("vera"))
    clicks.on("#kpi-local")
    becomes(clicks.page, "document.querySelector('#srv-web-7').innerText.includes('efused')")
    assert clicks.count == 1


def test_an_admin_reverts_a_change_in_two_clicks(sign_in: Any, production: str) -> None:
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=7,
        window_s=60,
        burst=7,
        expected_version=None,
        reason="a mistake in the contract",
        actor=BOB,
    )
    page = sign_in("ada")
    page.goto("/tenant?key=acme-retail")
    clicks = Clicks(page)
    clicks.on("#history li:first-child a:has-text('Revert')")
    page.fill("#f-reason", WHY)
    clicks.on("text=Revert as a new revision")
    page.wait_for_url("**/tenant?key=acme-retail*")
    assert clicks.count == 2
    assert not TenantQuota.objects.exists()


def test_an_admin_reverts_a_recent_change_in_two_clicks_from_the_overview(
    sign_in: Any, production: str
) -> None:
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=7,
        window_s=60,
        burst=7,
        expected_version=None,
        reason="a mistake in the contract",
        actor=BOB,
    )
    clicks = Clicks(sign_in("ada"))
    clicks.on(f"#events a[href='/revisions/{head()}/revert']")
    clicks.page.fill("#f-reason", WHY)
    clicks.on("text=Revert as a new revision")
    wait_until(lambda: not TenantQuota.objects.exists(), "the change is reverted")
    assert clicks.count == 2


def test_an_approver_approves_a_request_in_two_clicks_from_the_overview(
    sign_in: Any, log_in: Any, production: str
) -> None:
    set_approvals(environment=production, needed=1, reason=WHY, actor=BOB)
    typed = {"limit.requests.limit": "9", "limit.requests.burst": "9", "base": head(), "reason": WHY}
    log_in("ada").post(ACME, typed)
    clicks = Clicks(sign_in("olga"))
    assert "1 to approve" in clicks.page.inner_text("#waiting")
    clicks.on("#waiting a:has-text('acme-retail')")
    clicks.on("button[value=approve]")
    wait_until(lambda: ChangeRequest.objects.get().state == "approved", "the request is approved")
    assert clicks.count == 2
    clicks.page.goto("/")
    shown = clicks.page.inner_text("#waiting")
    assert "1 to apply" in shown
    assert "to approve" not in shown, "what is approved waits for no decision"


def test_a_429_is_explained_in_two_clicks_from_its_figure(sign_in: Any, production: str) -> None:
    put_samples()
    clicks = Clicks(sign_in("vera"))
    clicks.on("#kpi-refused")
    clicks.on(f"a[href='/explain/{FIRST}']")
    clicks.page.wait_for_selector("#explained")
    assert clicks.count == 2
    assert "Tenant acme-retail, in tier pro then." in clicks.page.inner_text("#explained")


def test_a_429_is_explained_in_two_clicks_from_its_token(sign_in: Any, production: str) -> None:
    token = token_of(put_samples()[0])
    clicks = Clicks(sign_in("vera"))
    clicks.in_side_bar("Limits", "Explain a refusal")
    clicks.page.fill("[name=token]", token)
    clicks.on("#explain-form button")
    clicks.page.wait_for_selector("#explained")
    assert clicks.count == 2
    assert "Asking again was possible after 12.4 s." in clicks.page.inner_text("#explained")
