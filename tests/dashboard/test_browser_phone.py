"""Pages on a phone, 390 pixels wide: what an operator needs at 3 am is there, and near the top."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from fleet_rows import breaker, put_figures, put_server
from positions import tops
from test_alerts_page import alert
from test_incident_pages import incident

from controlplane.alerts.lifecycle import AlertState
from controlplane.breakers.models import Override
from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.policies.models import Environment, Revision
from controlplane.reconciliation.models import AllowedAlone
from fuseboard.contract.words import OverrideMode
from tests.people import ADA, OLGA

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

#: Pixels above the heading of a page: the bar, and what every page says.
MOST_CHROME = 100
PHONE = {"width": 390, "height": 844}
#: The words of each cell of the first row of a table that are seen, with the label before them.
SEEN = """rows => [...rows[0].cells].filter(cell => cell.checkVisibility()).map(cell =>
  `${cell.dataset.th || ""} ${cell.innerText}`.replace(/\\s+/g, " ").trim())"""


def on_phone(sign_in: Any, name: str, path: str) -> Any:
    page = sign_in(name)
    page.set_viewport_size(PHONE)
    page.goto(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    return page


def first_row(page: Any) -> list[str]:
    rows = page.locator("table.stacks tr[data-row]")
    beyond = "cells => cells.filter(cell => cell.getBoundingClientRect().right > 390).length"
    assert rows.first.locator(":is(th, td):visible").evaluate_all(beyond) == 0
    seen: list[str] = rows.evaluate_all(SEEN)
    return seen


def test_a_pod_has_what_its_runbooks_ask_for(sign_in: Any, production: str) -> None:
    """A phone hid the p99 of Redis, which is the first step of the runbook "Redis is slow"."""
    put_server("web-1", redis_p99_us=9_300, calls_per_s=40.0)
    row = first_row(on_phone(sign_in, "olga", "/servers"))
    for words in ("web-1", "Service shop", "Zone zone-a", "Mode Shared", "Redis p99 9.3 ms", "Requests/s 40"):
        assert words in row, row
    assert any(cell.startswith("Revision 1,000") or cell.startswith("Revision 1000") for cell in row)


def test_the_words_of_a_pods_limits_are_explained_without_a_pointer(sign_in: Any, production: str) -> None:
    """They were a tooltip of the heading, which a phone does not have."""
    page = on_phone(sign_in, "olga", "/servers")
    assert not page.get_by_text("the pod decides all").is_visible()
    page.get_by_text("What Limits says").click()
    said = page.locator("details:has-text('What Limits says')").inner_text()
    for word in ("exact", "shared", "some local", "ramping up", "without Redis", "unknown"):
        assert f"{word}: " in said, said


def test_retries_have_their_fallbacks(sign_in: Any, production: str) -> None:
    """ "Retries and fallbacks" had no column of fallbacks."""
    put_server()
    calls = {"callers": 3, "first_calls_per_s": 20.0, "fallbacks_per_s": 2.0, "fallback_failures_per_s": 0.5}
    put_figures(protection={"payments-api": calls})
    row = first_row(on_phone(sign_in, "olga", "/retries"))
    assert {"payments-api", "First calls 20/s", "Fallbacks 2/s", "Fallbacks failed 0.5/s"} <= set(row), row


def test_two_limits_allowed_without_redis_can_be_told_apart(sign_in: Any, production: str) -> None:
    """Two rows of "all tenants, contract" were alike: the phone hid their dependencies."""
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(hours=1)
    for name in ("payments-api", "search"):
        AllowedAlone.objects.create(
            environment=production, domain=f"d:{name}", field="f", counter="f", value=3, amount=3,
            dependency=name, rule="contract", start=start, length_s=60,
        )  # fmt: skip
    page = on_phone(sign_in, "olga", "/reconciliation")
    row = first_row(page)
    assert {"Dependency payments-api", "Limit contract"} <= set(row), row
    assert page.locator("table.stacks tr[data-row]").count() == 2


@pytest.mark.parametrize(
    ("path", "is_set", "field"),
    [
        ("/audit", "/audit?kind=dependency", "input[name=q]"),
        ("/changes", "/changes?kind=edit", "input[name=thing]"),
        ("/breakers", "/breakers?state=open", "input[data-filter]"),
        ("/servers", "/servers?q=web", "input[data-filter]"),
        ("/refusals", "", "input[name=token]"),
        ("/refusals", "/refusals?tenant=acme-retail", "input[name=tenant]"),
        ("/tenants", "/tenants?q=acme", "input[name=q]"),
        ("/incidents", "/incidents?state=open", "input[name=q]"),
        ("/alerts", "/alerts?severity=critical", "input[name=q]"),
        ("/revisions", "/revisions?q=seed", "input[name=q]"),
    ],
)
def test_filters_fold_behind_one_line(
    sign_in: Any, production: str, path: str, is_set: str, field: str
) -> None:
    """The first entry of the audit began at 590 pixels, below two rows of fields."""
    put_server()
    incident()
    alert("lag", state=AlertState.RESOLVED, resolved_at=timezone.now())
    page = on_phone(sign_in, "olga", path)
    assert not page.is_visible(field)
    page.click(f".fold:has({field}) > summary")
    assert page.is_visible(field)
    if is_set:
        page.goto(is_set)
        assert page.is_visible(field), "what is set is seen"
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(path)
    assert page.is_visible(field)
    assert not page.is_visible(f".fold:has({field}) > summary"), "there is room"


@pytest.mark.parametrize(("path", "highest"), [("/audit", 400), ("/changes", 400), ("/breakers", 260)])
def test_the_first_row_is_near_the_heading(sign_in: Any, production: str, path: str, highest: int) -> None:
    """It began at 590 pixels. Notices above the heading are no part of that."""
    put_server()
    page = on_phone(sign_in, "olga", path)
    heading, row = tops(page, "main h1", "table.stacks tr[data-row]")
    assert row - heading <= highest


def test_the_first_alert_is_near_the_heading(sign_in: Any, production: str) -> None:
    """Seven lines stood before it, four of them the same on five pages."""
    alert("lag")
    page = on_phone(sign_in, "ada", "/alerts")
    page.evaluate("document.querySelectorAll('main .notice').forEach(one => one.style.display = 'none')")
    heading, first = tops(page, "main h1", "#rows .list > li")
    assert first - heading <= 180


@pytest.mark.parametrize("path", ["", "/receivers", "/routes", "/rules"])
def test_the_words_on_severity_and_level_fold_behind_one_line(
    sign_in: Any, production: str, path: str
) -> None:
    page = on_phone(sign_in, "ada", f"/alerts{path}")
    words = page.get_by_text("who must know: 1 is handled automatically")
    assert not words.is_visible()
    page.click("text=What severity and level mean")
    assert words.is_visible()
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/alerts{path}")
    assert words.is_visible()
    assert not page.is_visible("text=What severity and level mean"), "there is room"


def test_an_override_that_ends_takes_one_line(sign_in: Any, production: str) -> None:
    """The page began at 133 pixels, below three lines about an override."""
    for name in ("payments-api", "search"):
        override_breaker(
            environment="production", dependency=name, mode=OverrideMode.FORCED_OPEN, reason="vendor is down",
            expires_at=timezone.now() + timedelta(minutes=4), actor=OLGA,
        )  # fmt: skip
    Override.objects.update(created_at=timezone.now() - timedelta(minutes=20))
    page = on_phone(sign_in, "olga", "/runbooks")
    page.wait_for_selector("#store .notice[id]")
    assert page.locator("#store .notice:visible").count() == 1
    assert page.locator("#store").get_by_text("+1").is_visible(), "the other one"
    assert page.locator("#store").get_by_text("Extend").first.is_visible()
    assert tops(page, "main h1")[0] <= MOST_CHROME


def test_a_freeze_takes_one_line_that_opens(sign_in: Any, production: str) -> None:
    """A notice of three lines stood above every page."""
    Environment.objects.update(
        frozen_until=timezone.now() + timedelta(hours=2),
        frozen_by="ada",
        frozen_reason="the week of Christmas",
    )
    override_breaker(
        environment="production", dependency="search", mode=OverrideMode.FORCED_OPEN, reason="vendor is down",
        expires_at=timezone.now() + timedelta(minutes=4), actor=OLGA,
    )  # fmt: skip
    Override.objects.update(created_at=timezone.now() - timedelta(minutes=20))
    page = on_phone(sign_in, "olga", "/runbooks")
    page.wait_for_selector("#store .notice[id]", state="attached")
    notices = page.locator("#store .notice:visible")
    assert notices.count() == 1
    assert "And more" in notices.inner_text()
    assert tops(page, "main h1")[0] <= MOST_CHROME
    page.click("#store summary")
    assert notices.count() == 2, "the override, too"
    assert page.get_by_text("the week of Christmas").is_visible()
    page.set_viewport_size({"width": 1440, "height": 900})
    assert not page.is_visible("#store summary"), "there is room"
    assert page.get_by_text("the week of Christmas").is_visible()
    assert page.locator("#store b:has-text('Edits are frozen until'):visible").count() == 1, "it is said once"


def test_the_note_after_an_edit_leaves_the_heading_near_the_top(sign_in: Any, production: str) -> None:
    number = edits.change_tier(
        environment=production, tenant="acme-retail", tier="free", expected_version=None, reason="for a test",
        actor=ADA,
    )  # fmt: skip
    page = on_phone(sign_in, "ada", "/runbooks")
    # A slow login is long after the last heartbeats, and a note about silent pods has more lines.
    for name in ("web-1", "web-2", "web-3"):
        put_server(name)
    page.goto(f"/runbooks?saved={number}")
    page.wait_for_selector(".saved :text('3 of 3 pods have applied it')")
    assert tops(page, "main h1")[0] <= MOST_CHROME


def test_the_page_of_an_open_breaker_begins_with_what_can_be_done(sign_in: Any, production: str) -> None:
    """Reset was 2,500 pixels below Force open."""
    put_server(breakers=[breaker("payments-api", "open", generation=2), breaker("search")])
    page = on_phone(sign_in, "olga", "/breakers/payments-api")
    assert page.locator("#hero a.btn:visible").all_inner_texts() == ["Force open\u2026", "Reset\u2026"]
    page.click("#hero a.btn:has-text('Reset')")
    assert page.is_checked("#override input[value=reset]")
    page.goto("/breakers/search")
    assert page.locator("#hero a.btn:visible").all_inner_texts() == ["Force open\u2026"], "it is closed"


def test_the_name_of_a_field_is_not_broken_within_a_word(sign_in: Any, production: str) -> None:
    edits.set_tenant_quota(
        environment="production", tenant="acme-retail", quota="daily", dependency="payments-api",
        algorithm="fixed_window", period="day", window_s=86_400, limit=1_000, expected_version=None,
        reason="The contract says so", actor=ADA,
    )  # fmt: skip
    number = Revision.objects.order_by("-number").values_list("number", flat=True)[0]
    page = on_phone(sign_in, "olga", f"/revisions/{number}")
    narrower = """cells => cells.filter(cell => {
      const range = document.createRange();
      for (const node of [...cell.childNodes].filter(one => one.nodeType === Node.TEXT_NODE)) {
        for (const word of node.data.matchAll(/\\S+/g)) {
          range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
          if (range.getClientRects().length > 1) return true;
        }
      }
      return false;
    }).map(cell => cell.textContent)"""
    cells = page.locator(".changes tbody td:first-child")
    assert cells.count() > 0
    assert cells.evaluate_all(narrower) == []
