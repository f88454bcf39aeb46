"""A person on call, in a browser: from an alert to the breaker, and what is done about alerts on the way."""

import re
from datetime import timedelta
from typing import Any

import pytest
from browsing import Clicks, becomes, is_live
from fleet_rows import breaker, notify, put_server

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
    page.click("#rows button[name=acknowledge] >> nth=0")
    becomes(page, "document.querySelector('#rows').innerText.includes('Acknowledged by olga')")
    assert Alert.objects.get().acknowledged_by == "olga"
    page.click("#rows .take summary")
    page.click("#rows .take a:has-text('30 min')")
    page.wait_for_url(re.compile(r"/alerts/mutes\?"))
    assert "payments-api is near its threshold" in page.inner_text("main"), "what it would mute"
    page.fill("main [name=reason]", WHY)
    page.click("button[value=add]")
    becomes(page, "document.querySelector('main').innerText.includes('Muted: ')")
    assert Mute.objects.get().reason == WHY


def test_a_card_of_the_overview_is_acknowledged_with_a_note_and_muted(sign_in: Any, firing: int) -> None:
    page = sign_in("olga")
    is_live(page)
    clicks = Clicks(page)
    clicks.on("#conditions .take summary")
    page.fill("#conditions .take input", "Called the vendor")
    # A drawing that arrives meanwhile closes nothing, and keeps what is typed.
    put_server("web-2", state="offline")
    notify()
    becomes(page, "document.querySelector('#conditions').innerText.includes('No heartbeat from web-2')")
    assert page.input_value("#conditions .take input") == "Called the vendor"
    clicks.on("#conditions .take button[name=acknowledge]")
    becomes(page, "document.querySelector('#conditions').innerText.includes('Acknowledged by olga')")
    assert page.url.endswith("/"), "the operator stays on the overview"
    assert "Called the vendor" in page.inner_text("#conditions")
    row = Alert.objects.get()
    assert (row.acknowledged_by, row.note) == ("olga", "Called the vendor")
    assert clicks.count == 2
    is_live(page)
    clicks.on("#conditions .take summary")
    clicks.on("#conditions .take a:has-text('1 h')")
    page.wait_for_url(re.compile(r"/alerts/mutes\?"))
    assert page.input_value("[name=minutes]") == "60"
    page.fill("main [name=reason]", WHY)
    clicks.on("button[value=add]")
    becomes(page, "document.querySelector('main').innerText.includes('Muted: ')")
    mute = Mute.objects.get()
    assert (mute.rule, mute.dependency, mute.ends_at - mute.starts_at) == (
        "near",
        "payments-api",
        timedelta(hours=1),
    )
    page.goto("/")
    assert "Muted until" in page.inner_text("#conditions")


def test_enter_in_a_note_acknowledges_the_alert_of_its_card(sign_in: Any, firing: int) -> None:
    incident("lag", text="3 pods have old configuration", subject_kind="servers", subject_name="")
    page = sign_in("olga")
    page.goto("/alerts")
    is_live(page)
    for number in range(2):
        page.click(f"#rows > ul > li > .a > .take > summary >> nth={number}")
    note = page.locator("#rows .take input").nth(1)
    note.fill("Called the vendor")
    written = note.get_attribute("name")
    # Without JavaScript, the browser presses no button of the form that all cards share.
    block = "document.addEventListener('keydown', window.block = e => e.stopPropagation(), true)"
    page.evaluate(block)
    note.press("Enter")
    page.wait_for_timeout(300)
    assert not Alert.objects.exclude(acknowledged_by="").exists()
    page.evaluate("document.removeEventListener('keydown', window.block, true)")
    note.press("Enter")
    becomes(page, "document.querySelector('#rows').innerText.includes('Acknowledged by olga')")
    [row] = Alert.objects.exclude(acknowledged_by="")
    assert (f"note-{row.pk}", row.note) == (written, "Called the vendor")


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
