"""One person works in two environments, in two tabs."""

from typing import Any

import pytest
from browsing import becomes, is_live
from django.core.management import call_command
from fleet_rows import breaker, notify, put_server

from controlplane.policies.models import TierQuota

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def staging(production: str) -> str:
    call_command("create_environment", "staging", "--like", "production", "--tenants", verbosity=0)
    put_server("stage-1", environment="staging", breakers=[breaker("search")])
    return "staging"


def limits() -> dict[str, int]:
    rows = TierQuota.objects.filter(tier__name="pro", name="requests")
    return dict(rows.values_list("tier__environment", "limit"))


def edit_requests(page: Any, limit: int) -> None:
    page.fill("#f-limit-requests-limit", str(limit))
    page.fill("#f-reason", "for a test of two environments")
    page.click("text=Save changes")
    page.wait_for_selector(".saved")


def test_each_of_two_tabs_edits_and_watches_its_own_environment(sign_in: Any, staging: str) -> None:
    here = sign_in("ada")
    assert here.inner_text(".env b") == "production"
    assert here.evaluate("getComputedStyle(document.querySelector('.env b')).borderStyle") == "solid"
    here.goto("/edit/tier?key=pro")
    here.click(".env summary")
    here.click(".env .me-menu a")
    here.wait_for_url("**/env/staging/edit/tier?key=pro")
    assert here.inner_text(".env b") == "staging"
    assert here.evaluate("getComputedStyle(document.querySelector('.env b')).borderStyle") == "dashed"
    here.go_back()
    there = here.context.new_page()
    there.goto("/env/staging/edit/tier?key=pro")

    before = limits()
    # Both forms are open; the one that was opened last is saved first.
    edit_requests(there, 4321)
    assert limits() == before | {"staging": 4321}
    edit_requests(here, 1234)
    assert limits() == {"staging": 4321, "production": 1234}
    assert there.url.partition("?")[0].endswith("/env/staging/edit/tier")
    there.click("text=Undo")
    becomes(there, f"document.querySelector('#f-limit-requests-limit')?.value === '{before['staging']}'")
    assert limits() == {"staging": before["staging"], "production": 1234}

    here.goto("/servers")
    there.goto("/env/staging/servers")
    is_live(here)
    is_live(there)
    put_server("stage-2", environment="staging", breakers=[breaker("search")])
    put_server("web-4", breakers=[breaker("search")])
    notify()
    becomes(there, "document.querySelector('#rows').innerText.includes('stage-2')")
    becomes(here, "document.querySelector('#rows').innerText.includes('web-4')")
    assert "web-" not in there.inner_text("#rows")
    assert "stage-" not in here.inner_text("#rows")
    assert there.title().startswith("staging")

    here.keyboard.press("Control+k")
    becomes(here, "document.querySelectorAll('#pal-list [role=option]').length > 0")
    here.fill("#palette input", "switch to staging")
    here.keyboard.press("Enter")
    here.wait_for_url("**/env/staging/")
    is_live(here)
    there.close()
