"""The pages of incidents: the list, one incident with its timeline, and what operators do there."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.incidents.edits import add_note
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Incident, Marker
from controlplane.alerts.state.stored_alerts import stored_alerts
from controlplane.audit.models import Entry
from controlplane.breakers.models import Transition
from controlplane.policies.models import Dependency
from dashboard.views.alerts import incidents as incident_views
from tests.controlplane.alerts.test_alert_evaluator import ADA
from tests.dashboard.refused_samples import sample_of
from tests.dashboard.shown import text_of
from tests.dashboard.test_alerts_page import alert

pytestmark = pytest.mark.django_db(transaction=True)
WHY = {"reason": "the same outage of the vendor"}


def incident(key: str = "open:payments-api", number: int | None = None, **fields: Any) -> Incident:
    """An incident with one alert that fires."""
    row = alert(key, **fields)
    opened = Incident.objects.create(
        pk=number,
        environment="production",
        cause=row.key,
        title=row.text,
        level=2,
        severity="critical",
        started_at=row.true_since,
        opened_at=row.true_since,
    )
    row.incident = opened
    row.save()
    return opened


def text(client: Any, path: str) -> str:
    page: str = client.get(path).content.decode()
    return page


def test_the_list_has_open_and_past_incidents_and_filters(log_in: Any) -> None:
    first = incident()
    closed = {"closed_at": timezone.now(), "closed_by": "olga"}
    Incident.objects.filter(pk=incident("lag", text="3 pods have old configuration").pk).update(**closed)
    olga = log_in("olga")
    page = text(olga, "/incidents")
    assert ">1 active<" in page
    assert f'href="/incidents/{first.pk}"' in page
    assert "3 pods had old configuration" in page
    page = text(olga, "/incidents?state=open")
    assert "3 pods had old configuration" not in page
    assert "3 pods had old configuration" in text(olga, "/incidents?q=old+conf")
    assert "No incident matches" in text(olga, "/incidents?q=nothing")


def test_the_side_bar_and_the_heading_count_the_same(log_in: Any) -> None:
    incident()
    late = incident("p99", text="Redis p99 is 30 ms")
    Alert.objects.filter(incident=late).update(state=AlertState.RECOVERING, clear_since=timezone.now())
    closed = incident("lag", text="3 pods have old configuration")
    Incident.objects.filter(pk=closed.pk).update(closed_at=timezone.now(), closed_by="olga")
    page = text(log_in("olga"), "/incidents")
    assert ">1 active, 1 recovering<" in page
    found = {row.key: row for row in stored_alerts("production").values()}
    assert {key: row.incident_closed for key, row in found.items()} == {
        "open:payments-api": False,
        "p99": False,
        "lag": True,
    }


def test_an_alert_leads_to_its_incident_and_the_incident_to_what_is_affected(log_in: Any) -> None:
    row, olga = incident(), log_in("olga")
    assert f'href="/incidents/{row.pk}"' in text(olga, "/alerts")
    page = text(olga, f"/incidents/{row.pk}")
    assert page.count('href="/breakers/payments-api"') >= 2
    assert f'href="/runbooks/payment-provider-timeouts?incident={row.pk}&amp;of=payments-api"' in page
    assert "Timeline" in page
    assert f'hx-get="/incidents/{row.pk}/now"' in page
    now = text(olga, f"/incidents/{row.pk}/now")
    assert now.strip().startswith('<div class="stack" id="now"')
    assert "csrf" not in now


def test_an_operator_acknowledges_and_notes_on_the_page(log_in: Any) -> None:
    row, olga = incident(), log_in("olga")
    path = f"/incidents/{row.pk}"
    found = Alert.objects.get()
    page = olga.post(path, {"act": f"acknowledge:{found.pk}"}, follow=True).content.decode()
    assert "<b>olga</b> works on it" in page
    assert "Alert acknowledged" in page, "the timeline has it"
    page = olga.post(path, {"act": f"release:{found.pk}"}, follow=True).content.decode()
    assert "works on it" not in page
    page = olga.post(path, {"act": "note", "note": "Called <b>them</b>\nthey look"}, follow=True)
    assert "Called &lt;b&gt;them&lt;/b&gt;<br>they look" in page.content.decode()
    assert Entry.objects.get(action="incident.noted").actor == "olga"


def test_a_runbook_step_is_posted_and_kept(log_in: Any) -> None:
    row, olga = incident(), log_in("olga")
    step = {"act": "step", "runbook": "redis-unreachable", "step": "2", "text": "Look at it", "done": "1"}
    page = olga.post(f"/incidents/{row.pk}", step, follow=True).content.decode()
    assert "Step 2 done" in page
    assert 'href="/runbooks/redis-unreachable"' in page
    answer = olga.post(f"/incidents/{row.pk}", step | {"step": "two"})
    assert answer.status_code == 422


def test_merge_split_and_close(log_in: Any) -> None:
    first, second = incident(), incident("lag", text="3 pods have old configuration")
    olga = log_in("olga")
    page = olga.post(f"/incidents/{second.pk}", {"act": "merge", "into": first.pk, **WHY}, follow=True)
    assert f"Incident {second.pk} was merged into this one." in page.content.decode()
    assert f"Merged into {first.pk}" in text(olga, f"/incidents/{second.pk}")
    lag = Alert.objects.get(key="lag")
    page = olga.post(f"/incidents/{first.pk}", {"act": "split", "alert": lag.pk, **WHY}, follow=True)
    assert f"was split off incident {first.pk}" in page.content.decode()
    page = olga.post(f"/incidents/{first.pk}", {"act": "close", **WHY}, follow=True).content.decode()
    assert "by olga" in page
    assert "hx-trigger" not in page.partition('id="now"')[2].partition("</header>")[0]
    answer = olga.post(f"/incidents/{first.pk}", {"act": "close", "reason": "short"})
    assert answer.status_code == 422
    assert "short" in answer.content.decode(), "what was typed is kept"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"act": ""}, 422),
        ({"act": "acknowledge:x"}, 422),
        ({"act": "acknowledge:999999"}, 404),
        ({"act": "merge", "into": "", **WHY}, 422),
        ({"act": "merge", "into": "999999", **WHY}, 404),
        ({"act": "split", "alert": "999999", **WHY}, 404),
        ({"act": "note", "note": "x\x1fy"}, 422),
    ],
)
def test_wrong_input_is_explained(log_in: Any, sent: dict[str, str], status: int) -> None:
    row = incident()
    assert log_in("olga").post(f"/incidents/{row.pk}", sent).status_code == status


def test_a_viewer_reads_and_changes_nothing(log_in: Any) -> None:
    row, vera = incident(), log_in("vera")
    page = text(vera, f"/incidents/{row.pk}")
    assert "payments-api is open" in page
    assert 'name="act"' not in page
    assert vera.post(f"/incidents/{row.pk}", {"act": "note", "note": "hello"}).status_code == 403
    assert vera.get("/incidents/999999").status_code == 404


def test_another_environment_has_none_of_it(log_in: Any) -> None:
    row = incident()
    Incident.objects.update(environment="staging")
    assert log_in("olga").get(f"/incidents/{row.pk}").status_code == 404


def test_what_is_over_is_not_active_and_not_in_the_present_tense(log_in: Any) -> None:
    """Its breaker closed: the alert recovers, and the incident closes later."""
    row, other, olga = incident(), incident("lag", text="3 pods have old configuration"), log_in("olga")

    def seen(path: str) -> str:
        return text_of(text(olga, path))

    assert "payments-api is open Active" in seen("/incidents")
    states: list[dict[str, Any]] = [
        {"state": AlertState.RECOVERING, "clear_since": timezone.now()},
        {"state": AlertState.RESOLVED, "resolved_at": timezone.now()},
    ]
    for fields in states:
        Alert.objects.filter(incident=row).update(**fields)
        if fields["state"] == AlertState.RESOLVED:
            Incident.objects.filter(pk=row.pk).update(quiet_since=timezone.now())
        assert "payments-api was open Recovering" in seen("/incidents")
        assert "payments-api was open Recovering because" in seen(f"/incidents/{row.pk}")
        assert f"{row.pk}: payments-api was open" in seen(f"/incidents/{other.pk}")
    Incident.objects.filter(pk=row.pk).update(closed_at=timezone.now())
    assert "payments-api was open Closed" in seen("/incidents")
    # One of its alerts is true: it is active.
    Incident.objects.filter(pk=row.pk).update(closed_at=None, quiet_since=None)
    alert("open:payments-api", incident=row)
    assert "payments-api is open Active" in seen("/incidents")


def test_an_active_incident_has_the_words_and_the_severity_of_now(log_in: Any) -> None:
    """It said "Redis p99 is 38.3 ms", critical, while the alert was a warning at 14.8 ms."""
    worst: dict[str, Any] = {"severity": "warning", "worst": "critical", "worst_text": "Redis p99 is 38.3 ms"}
    row, olga = incident("p99", text="Redis p99 is 14.8 ms", **worst), log_in("olga")
    Incident.objects.update(title="Redis p99 is 38.3 ms")
    assert "Redis p99 is 14.8 ms Active 2, warning (was critical)" in text_of(text(olga, "/incidents"))
    page = text_of(text(olga, f"/incidents/{row.pk}"))
    assert (
        "Redis p99 is 14.8 ms Active with level 2, warning. It was critical: Redis p99 was 38.3 ms." in page
    )
    for path in (f"/incidents/{row.pk}/report", "/runbooks/redis-slow"):
        page = text_of(text(olga, path))
        assert "Redis p99 is 14.8 ms" in page
        assert "Redis p99 is 38.3 ms" not in page
    Alert.objects.update(state=AlertState.RECOVERING, clear_since=timezone.now())
    assert "Redis p99 was 38.3 ms Recovering 2, critical" in text_of(text(olga, "/incidents"))


def test_a_report_of_what_is_over_is_in_the_past_tense(log_in: Any) -> None:
    """Its heading, its Markdown and its link said "payments-api is open"; the incident said "was open"."""
    row, olga = incident(), log_in("olga")
    Alert.objects.update(state=AlertState.RECOVERING, clear_since=timezone.now())
    shared = {"act": "share", "days": "3"}
    page = olga.post(f"/incidents/{row.pk}/report", shared).content.decode()
    link = page.partition('<code class="secret">')[2].partition("</code>")[0]
    markdown = olga.get(f"/incidents/{row.pk}/report.md").content.decode()
    assert markdown.startswith(f"# Incident {row.pk}: payments-api was open")
    for seen in (page, text(olga, link)):
        assert "<h1>payments-api was open</h1>" in seen


def test_a_long_timeline_is_bounded_and_flapping_is_one_line(log_in: Any) -> None:
    row, olga = incident(), log_in("olga")
    begun = timezone.now() - timedelta(minutes=50)
    for number in range(5):
        since = begun + timedelta(minutes=number)
        past = {"true_since": since, "fired_at": since, "resolved_at": since + timedelta(seconds=9)}
        alert("lag", text="flaps", incident=row, state=AlertState.RESOLVED, **past)
    for number in range(70):
        add_note(environment="production", number=row.pk, text=f"note number {number}", actor=ADA)
    path = f"/incidents/{row.pk}"
    page = text(olga, path)
    assert "note number 69" in page
    assert "note number 0<" not in page
    assert 'href="?lines=all"' in page
    page = text(olga, f"{path}?lines=all")
    assert "note number 0<" in page
    assert "Alert began 5 times in 4 min" in page
    assert f'hx-get="{path}/now?lines=all"' in page


def test_the_report_is_a_page_a_file_and_a_link(log_in: Any) -> None:
    row, olga = incident(), log_in("olga")
    page = text(olga, f"/incidents/{row.pk}/report")
    assert f"# Incident {row.pk}: payments-api is open" in page
    assert "Not reconciled yet." in page
    answer = olga.get(f"/incidents/{row.pk}/report.md")
    assert answer["Content-Disposition"] == f'attachment; filename="incident-{row.pk}.md"'
    page = olga.post(f"/incidents/{row.pk}/report", {"act": "share", "days": "3"}).content.decode()
    link = page.partition('<code class="secret">')[2].partition("</code>")[0]
    assert link.startswith("http://testserver/incidents/shared/")
    assert 'data-copies="secret" hidden>Copy<span class="vh"> the link</span>' in page
    assert olga.get(link).status_code == 200
    olga.post(f"/incidents/{row.pk}/report", {"act": "unshare"})
    assert olga.get(link).status_code == 404
    assert olga.post(f"/incidents/{row.pk}/report", {"act": "share", "days": "30"}).status_code == 422
    vera = log_in("vera")
    assert 'value="share"' not in text(vera, f"/incidents/{row.pk}/report")
    assert vera.post(f"/incidents/{row.pk}/report", {"act": "share", "days": "3"}).status_code == 403


def test_merge_split_and_close_are_forms_with_their_own_fields(log_in: Any) -> None:
    incident()
    row = incident("lag")
    page = text(log_in("olga"), f"/incidents/{row.pk}")
    forms = {form.partition('name="act" value="')[2].partition('"')[0]: form for form in page.split("<form ")}
    assert 'name="into"' in forms["merge"]
    assert 'name="into"' not in forms["close"]
    for act, control in (("merge", "m-reason"), ("close", "c-reason")):
        assert f'id="{control}"' in forms[act]
    answer = log_in("olga").post(f"/incidents/{row.pk}", {"act": "close", "reason": "short"})
    page = answer.content.decode()
    assert page.count(">short</textarea>") == 1
    assert 'id="c-reason_error"' in page


def test_what_an_alert_said_when_it_began_and_fired_stays_in_the_timeline(log_in: Any) -> None:
    """The timeline had the figures of now beside the times of then."""
    row = incident("429", text="2 % of requests are refused", detail="2 of 100/s.")
    began = {"begun_text": "9 % of requests are refused", "begun_detail": "9 of 100/s."}
    fired_at = timezone.now()
    Alert.objects.update(**began, fired_text="12 % of requests are refused", fired_at=fired_at)
    found = text_of(text(log_in("olga"), f"/incidents/{row.pk}"))
    timeline = found[found.index("Timeline") :]
    assert "Alert fired 12 % of requests are refused" in timeline
    for words in ("9 % of requests are refused", "9 of 100/s."):
        assert words in timeline
    assert "2 of 100/s." not in timeline


def test_an_incident_says_who_forced_its_breaker_open(log_in: Any) -> None:
    """It read "payments-api is open" while a person had forced it open."""
    row, olga = incident(), log_in("olga")
    forced = {"act": "forced_open", "reason": "CHG-4821 vendor maintenance", "lasts": "10"}
    assert olga.post("/breakers/payments-api", forced).status_code == 302
    Alert.objects.update(state=AlertState.RECOVERING, clear_since=timezone.now())
    found = text_of(text(olga, f"/incidents/{row.pk}"))
    assert "payments-api is forced open by olga until " in found
    assert "payments-api was open" in found


def test_a_closed_incident_does_not_build_the_fleet(log_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row, olga = incident(), log_in("olga")
    built, recent_live = [], incident_views.recent_live

    def counted(environment: str) -> Any:
        built.append(environment)
        return recent_live(environment)

    monkeypatch.setattr(incident_views, "recent_live", counted)
    olga.get(f"/incidents/{row.pk}")
    assert built == ["production"], "once for all of its dependencies"
    Incident.objects.update(closed_at=timezone.now())
    page = text_of(text(olga, f"/incidents/{row.pk}"))
    assert "payments-api was open" in page
    assert built == ["production"]


def test_the_report_says_which_requests_count(log_in: Any) -> None:
    """It listed a tenant that was refused by its own quota."""
    found = incident()
    sample_of(tenant="noisy-sparrow", reason="quota", dependency="")
    report = text_of(text(log_in("olga"), f"/incidents/{found.pk}/report"))
    assert "Counts requests refused by payments-api" in report
    assert "No such request of a tenant was sampled." in report
    assert "noisy-sparrow" not in report


def test_what_was_set_up_before_does_not_hide_the_incident(log_in: Any) -> None:
    """25 rows of setup stood between the alerts and the note."""
    row, olga = incident(), log_in("olga")
    before = row.started_at - timedelta(minutes=2)
    put_marker("Deployed web 4.2.0", before - timedelta(minutes=1))
    for number in range(9):
        put_entry("dependency.set", f"setup-{number}", before + timedelta(seconds=number))
    put_entry("dependency.set", "meanwhile", row.started_at + timedelta(seconds=1))
    page = text_of(text(olga, f"/incidents/{row.pk}"))
    timeline = page[page.index("Timeline") :]
    assert timeline.index("meanwhile") < timeline.index("Before it began") < timeline.index("setup-8")
    assert "setup-4" in timeline
    assert "setup-3" not in timeline
    assert "Deployed web 4.2.0" in timeline
    assert "4 more from before it began" in timeline
    report = text_of(text(olga, f"/incidents/{row.pk}/report"))
    actions = report[report.index("Actions") : report.index("Markdown")]
    assert "meanwhile" in actions
    assert "setup" not in actions, "they are in the timeline"
    every = text_of(text(olga, f"/incidents/{row.pk}?lines=all"))
    assert "setup-0" in every
    assert "more from before" not in every


def test_an_incident_of_a_dependency_has_no_lines_of_other_breakers(log_in: Any) -> None:
    row, olga = incident(), log_in("olga")
    now = row.started_at + timedelta(seconds=1)
    for name in ("payments-api", "search"):
        dependency = Dependency.objects.get(environment="production", name=name)
        figures = {"from_state": "closed", "to_state": "open", "cause": "consecutive", "server": f"at-{name}"}
        Transition.objects.create(dependency=dependency, at=now, generation=1, **figures)
        put_entry("breaker.held", name, now)
    found = text_of(text(olga, f"/incidents/{row.pk}"))
    assert found.count("Breaker open payments-api") == 1
    assert "Breaker open search" not in found
    assert "Override set payments-api" in found
    assert "Override set search" not in found
    Alert.objects.update(subject_kind="servers", subject_name="")
    found = text_of(text(olga, f"/incidents/{row.pk}"))
    assert "Breaker open search" in found, "an incident of the fleet has all"


def put_entry(action: str, target: str, at: datetime) -> None:
    entry = {"actor": "ada", "role": "admin", "origin": "form", "environment": "production", "reason": ""}
    kind = {"target_kind": "dependency", "before": {"a": 1}, "after": {"a": 2}}
    Entry.objects.create(action=action, target_name=target, at=at, **entry, **kind)


def put_marker(words: str, at: datetime) -> None:
    Marker.objects.create(environment="production", at=at, text=words, by="ada")
