"""A person on call, in a browser: from an alert to the breaker, and what is done about alerts on the way."""

import re
from typing import Any

import pytest
from browsing import Clicks, becomes, is_live
from fleet_rows import breaker, put_server

from controlplane.alerts.models import Alert, IncidentLine, Mute
from controlplane.breakers.models import Override
from controlplane.policies.models import RunbookRevision
from controlplane.runbooks.format import read_runbook
from controlplane.runbooks.shipped import shipped
from tests.dashboard.test_incident_pages import incident

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
WHY = "CHG-4821 the vendor fails"
BOOK = "breaker-open"


@pytest.fixture
def firing(production: str) -> int:
    """An alert of a breaker that still lets calls pass, and its incident; returns the incident."""
    put_server("web-1", breakers=[breaker("payments-api", window_failures=12, window_calls=30)])
    row = incident("near:payments-api", text="payments-api is near its threshold", runbook=BOOK)
    return int(row.pk)


def test_from_a_firing_alert_to_the_opened_breaker_in_three_clicks(sign_in: Any, firing: int) -> None:
    page = sign_in("olga")
    page.goto("/alerts")
    is_live(page)
    clicks = Clicks(page)
    clicks.on("#rows a[data-runbook]")
    clicks.on("a[data-action=force-open]")
    page.fill("#override [name=reason]", WHY)
    becomes(page, "document.querySelector('#preview button').innerText.includes('Force')")
    clicks.on("#preview button")
    becomes(page, "document.querySelector('#hero').innerText.toLowerCase().includes('forced open')")
    assert clicks.count == 3
    assert Override.objects.get().reason == WHY


def test_an_alert_is_acknowledged_and_muted_where_it_is(sign_in: Any, firing: int) -> None:
    page = sign_in("olga")
    page.goto("/alerts")
    is_live(page)
    page.click("#rows button[name=acknowledge]")
    becomes(page, "document.querySelector('#rows').innerText.includes('olga works on it')")
    assert Alert.objects.get().acknowledged_by == "olga"
    page.click("#rows a:has-text('Mute')")
    page.wait_for_url(re.compile(r"/alerts/mutes\?"))
    assert "payments-api is near its threshold" in page.inner_text("main"), "what it would mute"
    page.fill("main [name=reason]", WHY)
    page.click("button[value=add]")
    becomes(page, "document.querySelector('main').innerText.includes('Muted: ')")
    assert Mute.objects.get().reason == WHY


def test_a_step_of_the_runbook_is_ticked_and_is_in_the_incident(sign_in: Any, firing: int) -> None:
    page = sign_in("olga")
    page.goto(f"/runbooks/{BOOK}?incident={firing}")
    first = read_runbook(shipped()[BOOK].body).steps[0].text
    page.click(".step .tick >> nth=0")
    becomes(page, "document.querySelector('.step .tick').getAttribute('aria-checked') === 'true'")
    assert "olga" in page.inner_text(".step .by")
    assert IncidentLine.objects.get().text == first
    page.goto(f"/incidents/{firing}")
    assert first in page.inner_text("main")


def test_a_runbook_is_written_with_a_live_preview(sign_in: Any, production: str) -> None:
    put_server("web-1")
    page = sign_in("ada")
    page.goto(f"/runbooks/{BOOK}/edit")
    body = page.input_value("#f-body")
    page.fill("#f-body", body.replace("## Impact", "## Effect"))
    becomes(page, "document.querySelector('#preview').innerText.includes('Add the section ## Impact.')")
    page.fill("#f-body", body + "\n\nAsk **Priya** first.\n")
    becomes(page, "document.querySelector('#preview').innerText.includes('Ask Priya first.')")
    assert "Add the section" not in page.inner_text("#preview")
    page.fill("[name=reason]", WHY)
    page.click("button[value=save]")
    page.wait_for_url(f"**/runbooks/{BOOK}")
    assert "Ask Priya first." in page.inner_text("main")
    page.click(".verdict a:has-text('Revisions')")
    page.click("td a:has-text('1')")
    becomes(
        page, "document.querySelector('.lines ins').parentElement.innerText.includes('Ask **Priya** first.')"
    )
    assert RunbookRevision.objects.filter(runbook=BOOK).count() == 2
