"""The page of alerts: what fires, who works on it, and what fired in the past."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Evaluation
from controlplane.alerts.state.stored_alerts import past_alerts
from controlplane.audit.models import Entry
from dashboard.live.alert_cards import MAX_LIVE_CARDS
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)


def alert(key: str = "open:payments-api", **fields: Any) -> Alert:
    now = timezone.now()
    usual = {
        "environment": "production",
        "key": key,
        "level": 2,
        "severity": "critical",
        "worst": "critical",
        "state": AlertState.FIRING,
        "true_since": now - timedelta(minutes=5),
        "level_since": now - timedelta(minutes=5),
        "fired_at": now - timedelta(minutes=5),
        "text": "payments-api is open",
        "detail": "18 of 30 calls failed.",
        "runbook": "payment-provider-timeouts",
        "subject_kind": "breaker",
        "subject_name": "payments-api",
    }
    return Alert.objects.create(**(usual | fields))


def text(client: Any) -> str:
    return client.get("/alerts").content.decode()


def test_it_lists_what_fires_and_what_is_pending(log_in: Any) -> None:
    alert()
    alert(
        "lag",
        text="3 pods have old configuration",
        state=AlertState.PENDING,
        fired_at=None,
        severity="warning",
    )
    page = text(log_in("olga"))
    assert "payments-api is open" in page
    assert 'href="/breakers/payments-api"' in page
    assert "3 pods have old configuration" in page
    shown = text_of(page)
    assert "1 firing, 3 pending" in shown, "two are true of the pods of the test, and not stored yet"
    assert re.search(r"Pending, warning, since [\d:]+ UTC: fires in [\d:]+ if it lasts\.", shown)
    assert page.count('name="note-') == 1, "a pending alert cannot be acknowledged"


def test_an_operator_acknowledges_and_withdraws(log_in: Any) -> None:
    row, ada = alert(), log_in("olga")
    answer = ada.post("/alerts", {"acknowledge": row.pk, f"note-{row.pk}": "Called the vendor"}, follow=True)
    page = answer.content.decode()
    assert "Acknowledged: payments-api is open." in page
    assert "Acknowledged by olga, " in text_of(page)
    assert "Called the vendor" in page
    assert Entry.objects.get(action="alert.acknowledged").actor == "olga"
    page = ada.post("/alerts", {"release": row.pk}, follow=True).content.decode()
    assert "Acknowledgement withdrawn" in page
    assert "Acknowledged by" not in text_of(page).partition("Resolved")[0]


def test_a_viewer_reads_and_changes_nothing(log_in: Any) -> None:
    row, vera = alert(), log_in("vera")
    page = text(vera)
    assert "payments-api is open" in page
    assert 'name="acknowledge"' not in page
    assert vera.post("/alerts", {"acknowledge": row.pk}).status_code == 403
    assert Alert.objects.get().acknowledged_by == ""


@pytest.mark.parametrize(("sent", "status"), [("", 422), ("x", 422), ("999999", 404)])
def test_a_wrong_number_is_explained(log_in: Any, sent: str, status: int) -> None:
    answer = log_in("olga").post("/alerts", {"acknowledge": sent, "note": "Called <b>them</b>"})
    assert answer.status_code == status
    assert "Called &lt;b&gt;them&lt;/b&gt;" in answer.content.decode(), "what was typed is kept"


def test_a_warning_that_became_critical_meanwhile_is_read_first(log_in: Any) -> None:
    row, olga = alert(severity="warning"), log_in("olga")
    assert f'name="acknowledge" value="{row.pk} warning"' in text(olga)
    Alert.objects.update(severity="critical")
    answer = olga.post("/alerts", {"acknowledge": f"{row.pk} warning"})
    assert answer.status_code == 422
    assert "This alert has just become critical" in answer.content.decode()
    assert olga.post("/alerts", {"acknowledge": f"{row.pk} critical"}).status_code == 302


def test_an_alert_that_is_resolved_meanwhile_says_so(log_in: Any) -> None:
    row = alert(state=AlertState.RESOLVED, resolved_at=timezone.now())
    answer = log_in("olga").post("/alerts", {"acknowledge": row.pk})
    assert answer.status_code == 422
    assert "This alert is resolved" in answer.content.decode()


def test_resolved_alerts_have_pages(log_in: Any) -> None:
    for number in range(51):
        resolved = timezone.now() - timedelta(minutes=number)
        alert(
            f"open:dep-{number}",
            text=f"dep-{number} is open",
            state=AlertState.RESOLVED,
            resolved_at=resolved,
        )
    client = log_in("olga")
    first, second = text(client), client.get("/alerts?page=2").content.decode()
    assert "dep-0 was open" in first
    assert "dep-50 was open" not in first
    assert "dep-50 was open" in second
    assert "51, last 90 days" in first


def test_an_explained_alert_says_whether_it_is_sent(log_in: Any) -> None:
    cause = alert("pressure", text="web-1 is under pressure")
    alert("unhealthy", cause=cause)
    olga = log_in("olga")
    assert "Follows from web-1 is under pressure, so no separate message." in text_of(text(olga))
    Alert.objects.filter(pk=cause.pk).update(state=AlertState.RESOLVED, resolved_at=timezone.now())
    resolved = "Follows from web-1 was under pressure, which is resolved. A message is sent soon"
    assert resolved in text_of(text(olga))


def test_missing_figures_are_named(log_in: Any) -> None:
    alert(blind_since=timezone.now())
    assert "No figures since" in text(log_in("olga"))


def test_an_alert_without_traffic_says_when_it_ends(log_in: Any) -> None:
    alert(idle_since=timezone.now())
    olga = log_in("olga")
    assert "resolved after 10 minutes of that" in text(olga)
    gone = {"state": AlertState.RESOLVED, "resolved_at": timezone.now(), "resolved_why": "no_traffic"}
    Alert.objects.update(idle_since=None, **gone)
    assert "Resolved without traffic." in text(olga)


def test_names_are_escaped(log_in: Any) -> None:
    alert(
        text="<img src=x>",
        detail="<script>",
        note="<i>",
        acknowledged_by="<u>",
        acknowledged_at=timezone.now(),
    )
    page = text(log_in("olga"))
    for raw in ("<img src=x>", "<i>", "<u>"):
        assert raw not in page


def test_a_worker_that_stopped_is_in_the_headline(log_in: Any, production: str) -> None:
    """Pages never knew when rules were evaluated last, so that only receivers heard of it."""
    client = log_in("vera")
    Evaluation.objects.create(environment=production, at=timezone.now())
    assert "No worker evaluates alerts" not in client.get("/").content.decode()
    Evaluation.objects.update(at=timezone.now() - timedelta(minutes=5))
    assert "No worker evaluates alerts" in client.get("/").content.decode()


def test_an_alert_of_an_unknown_rule_without_a_runbook_leads_to_the_list(log_in: Any) -> None:
    """The overview and the page of alerts answered 500."""
    alert("of-a-later-version", text="Something new", runbook="")
    client = log_in("vera")
    for path in ("/", "/alerts"):
        page = client.get(path)
        assert page.status_code == 200
        assert "Something new" in page.content.decode()


def test_a_note_that_is_too_long_is_refused_and_kept(log_in: Any) -> None:
    row, olga = alert(), log_in("olga")
    for sent in ({"acknowledge": row.pk}, {"release": row.pk}):
        answer = olga.post("/alerts", sent | {f"note-{row.pk}": "x" * 501})
        assert answer.status_code == 422
        page = answer.content.decode()
        assert "Use at most 500 characters." in page
        assert "x" * 501 in page
    assert Alert.objects.get().acknowledged_by == ""


def test_no_alert_is_the_default_of_the_form_that_all_cards_share(log_in: Any) -> None:
    alert()
    [first, *others] = re.findall(r"<button[^>]* form=\"take\"[^>]*>", text(log_in("olga")))
    assert others
    assert " disabled" in first, "Enter in a note presses the first button"
    assert 'form="take"' not in text(log_in("vera"))


def test_the_mute_of_an_alert_of_one_tenant_says_that_it_mutes_the_rule(log_in: Any) -> None:
    alert()
    olga = log_in("olga")
    assert "Mute for" in text_of(text(olga))
    assert "all alerts of this rule" not in text_of(text(olga))
    alert("runaway-tenant:acme", text="acme is busy", subject_kind="tenant", subject_name="acme")
    assert "Mute all alerts of this rule for" in text_of(text(olga))


def test_lists_of_alerts_read_no_points(log_in: Any) -> None:
    gone = {"state": AlertState.RESOLVED, "resolved_at": timezone.now()}
    cause = alert(**gone)
    alert("near:payments-api", cause=cause, points=[[1.0, 2.0]], **gone)
    for row in past_alerts("production"):
        assert {"points", "turns"} <= row.get_deferred_fields()
        assert row.cause is None or {"points", "turns"} <= row.cause.get_deferred_fields()
    olga = log_in("olga")
    for page, words in (("/alerts", "payments-api was open"), ("/changes", "payments-api is open")):
        with CaptureQueriesContext(connection) as queries:
            assert words in olga.get(page).content.decode()
        assert not [one["sql"] for one in queries if '"points"' in one["sql"]], page


def test_more_alerts_than_the_page_updates_are_a_link_away(log_in: Any) -> None:
    for number in range(MAX_LIVE_CARDS + 2):
        alert(f"near:vendor-{number}", severity="warning", text=f"vendor-{number:02} is near")
    olga = log_in("olga")
    page = text(olga)
    # The pods of the fixture have an alert, too.
    assert 0 < page.count(" is near</a>") <= MAX_LIVE_CARDS
    assert 'href="?open=1#more"' in page
    more = olga.get("/alerts?open=1").content.decode()
    assert more.count(" is near</a>") == MAX_LIVE_CARDS + 2
    assert more.count('id="more-cards"') == 1
    assert 'id="more-cards"' not in olga.get("/alerts?open=x").content.decode()


def test_pages_of_the_side_bar_have_no_second_way_in_their_heading(log_in: Any) -> None:
    ada = log_in("ada")
    for path in (
        "/alerts",
        "/incidents",
        "/alerts/rules",
        "/alerts/mutes",
        "/alerts/receivers",
        "/alerts/routes",
    ):
        page = ada.get(path).content.decode()
        heading = page.partition('<header class="verdict">')[2].partition("</header>")[0]
        assert "<h1>" in heading, path
        assert "btn" not in heading, path
