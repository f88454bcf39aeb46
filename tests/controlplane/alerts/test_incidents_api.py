"""Incidents, their report, and markers of deployments by API; and the link to a report."""

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.alerts.incidents.markdown import as_markdown
from controlplane.alerts.incidents.markers import KEPT_DAYS, forget_markers
from controlplane.alerts.incidents.report import report_of
from controlplane.alerts.incidents.share import end_links, make_link
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Incident, Marker
from controlplane.audit.models import Entry
from controlplane.errors import InvalidEdit
from controlplane.fleet.models import Event
from controlplane.reconciliation.models import AllowedAlone, Copying
from controlplane.refusals.models import RefusalSample
from tests.controlplane.alerts.delivery.test_alert_deliveries import receiver
from tests.controlplane.alerts.test_alert_evaluator import ADA
from tests.controlplane.calling import API, problem, send, token_of
from tests.dashboard.test_incident_pages import incident
from tests.people import create_people

pytestmark = pytest.mark.django_db(transaction=True)
WHY = {"reason": "the same outage of the vendor"}


def refused(tenant: str, weight: float, **of: str) -> None:
    """By the breaker of payments-api, unless ``of`` names something else."""
    usual = {"dependency": "payments-api", "reason": "breaker_open", "mode": "shared"}
    RefusalSample.objects.create(
        environment="production",
        at=timezone.now() - timedelta(seconds=20),
        service="web",
        server="web-1",
        tenant=tenant,
        revision=1,
        retry_after_ms=0,
        weight=weight,
        **usual | of,
    )


def test_an_operator_lists_notes_ticks_merges_splits_and_closes(production: str) -> None:
    token = token_of("operator")
    first, second = incident(), incident("lag", text="3 pods have old configuration")
    assert {row["id"] for row in send(token, "GET", f"{API}/incidents?state=open").json()} == {
        first.pk,
        second.pk,
    }
    whole = send(token, "GET", f"{API}/incidents/{first.pk}").json()
    assert (whole["state"], [one["key"] for one in whole["alerts"]]) == ("open", ["open:payments-api"])
    path = f"{API}/incidents/{first.pk}"
    assert send(token, "POST", f"{path}/notes", {"text": "called them"}).status_code == 201
    step = {"runbook": "redis-unreachable", "step": 1, "text": "Look at it"}
    made = send(token, "POST", f"{path}/steps", step).json()
    assert send(token, "POST", f"{path}/steps", step).json() == made, "noted once"
    kinds = [line["kind"] for line in send(token, "GET", f"{path}/timeline?limit=2").json()]
    assert kinds == ["step", "note"]
    merged = send(token, "POST", f"{API}/incidents/{second.pk}/merge", {"into": first.pk, **WHY})
    assert merged.json()["id"] == first.pk
    lag = Alert.objects.get(key="lag")
    new = send(token, "POST", f"{path}/split", {"alert": lag.pk, **WHY})
    assert (new.status_code, new.json()["cause"]) == (201, "lag")
    closed = send(token, "POST", f"{path}/close", WHY).json()
    assert closed["state"] == "closed"
    problem(send(token, "POST", f"{path}/close", WHY), 422)
    problem(send(token, "GET", f"{API}/incidents/999999"), 404)
    problem(send(token_of("viewer"), "POST", f"{path}/notes", {"text": "hello"}), 403)


def test_a_marker_that_is_sent_twice_with_one_key_is_one(production: str) -> None:
    token, values = token_of("operator"), {"text": "Deployed web 4.2.0", "service": "web"}
    made = [
        send(token, "POST", f"{API}/markers", values, **{"Idempotency-Key": "deploy-4.2.0"}) for _ in range(2)
    ]
    assert [one.status_code for one in made] == [201, 201]
    assert made[0].json() == made[1].json()
    [row] = send(token, "GET", f"{API}/markers").json()
    assert (row["text"], row["service"]) == ("Deployed web 4.2.0", "web")
    marks = send(token, "GET", f"{API}/series/marks?kind=fleet").json()["marks"]
    assert [mark["text"] for mark in marks if mark["kind"] == "marker"] == ["web: Deployed web 4.2.0"]
    found = incident()
    lines = send(token, "GET", f"{API}/incidents/{found.pk}/timeline").json()
    assert [line["what"] for line in lines if line["kind"] == "marker"] == ["Deployed web 4.2.0"]
    assert Entry.objects.filter(action="marker.added").count() == 1


@pytest.mark.parametrize(
    "values",
    [
        {"text": ""},
        {"text": "x" * 201},
        {"text": "Deployed", "service": "a b"},
        {"text": "Deployed", "at": "2001-01-01T00:00:00Z"},
        {"text": "Deployed", "at": "2999-01-01T00:00:00Z"},
    ],
)
def test_a_wrong_marker_is_explained(production: str, values: dict[str, str]) -> None:
    problem(send(token_of("operator"), "POST", f"{API}/markers", values), 422)
    assert not Marker.objects.exists()


def test_old_markers_are_forgotten(production: str) -> None:
    now = timezone.now()
    for days in (0, KEPT_DAYS + 1):
        Marker.objects.create(environment=production, at=now - timedelta(days=days), text="x", by="ada")
    assert forget_markers() == 1
    assert Marker.objects.count() == 1


def test_the_report_says_when_it_was_noticed_taken_and_over(production: str) -> None:
    token, found = token_of("operator"), incident()
    row = Alert.objects.get()
    sent_at = row.true_since + timedelta(seconds=7)
    Delivery.objects.create(
        receiver=receiver(), alert=row, kind="fired", document={}, state=DeliveryState.SENT, sent_at=sent_at
    )
    refused("acme", 400.0)
    refused("globex", 1200.0)
    send(token, "POST", f"{API}/alerts/{row.pk}/acknowledge", {"note": "on it"})
    report = send(token, "GET", f"{API}/incidents/{found.pk}/report").json()
    assert report["detected_at"] is not None
    assert report["acknowledged_by"] == row_by(row)
    assert report["recovered_at"] is None
    assert report["tenants"] == [
        {"tenant": "globex", "refused": 1200},
        {"tenant": "acme", "refused": 400},
    ]
    assert "not known whether pods decided locally" in report["bound"]
    assert report["usage"] == "Not reconciled yet."
    Alert.objects.update(state=AlertState.RESOLVED, resolved_at=timezone.now())
    assert send(token, "GET", f"{API}/incidents/{found.pk}/report").json()["recovered_at"] is not None


def test_the_report_says_what_pods_allowed_without_redis(production: str) -> None:
    found, end = incident(), timezone.now()
    Incident.objects.update(closed_at=end)

    def usage() -> str:
        return report_of(Incident.objects.get()).usage

    Copying.objects.update_or_create(pk=1, defaults={"began_at": end - timedelta(seconds=1)})
    assert usage() == "Not reconciled yet.", "pods may have reported since then"
    Copying.objects.update(began_at=end)
    assert usage() == "Limits counted no call without Redis."
    # All alerts are resolved, and the incident is quiet for 10 minutes before it is closed.
    Alert.objects.update(state=AlertState.RESOLVED, resolved_at=end)
    Incident.objects.update(closed_at=None)
    assert usage() == "Limits counted no call without Redis."
    AllowedAlone.objects.create(
        environment="production",
        domain="d:search",
        field="limit:calls@0+60",
        counter="limit:calls",
        value=1_260,
        amount=1_260,
        start=found.started_at,
        length_s=60,
        dependency="search",
        rule="calls",
    )
    assert usage() == (
        "Limits counted 1,260 calls to dependencies without Redis; at least 0 of them were over a limit."
        " Calls that pods refused, and calls that no limit counts, are not among those allowed."
    ), "its limit is not known"


def row_by(row: Alert) -> str:
    row.refresh_from_db()
    return row.acknowledged_by


def test_the_markdown_has_everything_and_no_live_markup(production: str) -> None:
    token, found = token_of("operator"), incident()
    note = "see <script> and [here](javascript:alert) | *now*\n# not a heading"
    send(token, "POST", f"{API}/incidents/{found.pk}/notes", {"text": note})
    answer = send(token, "GET", f"{API}/incidents/{found.pk}/report?format=markdown")
    assert answer["Content-Type"] == "text/markdown; charset=utf-8"
    text = answer.content.decode()
    assert text.startswith(f"# Incident {found.pk}: payments-api is open\n")
    assert "## Timeline, UTC" in text
    assert r"see \<script\> and \[here\](javascript:alert) \| \*now\* \# not a heading" in text


def test_a_shared_link_opens_the_report_and_nothing_else(production: str) -> None:
    create_people("ada")
    found = incident(detail="Most are from acme.")
    refused("acme", 400.0)
    send(token_of("operator"), "POST", f"{API}/markers", {"text": "Deployed web 4.2.0"})
    path = make_link(environment=production, number=found.pk, days=3, actor=ADA)
    answer = Client().get(path, secure=True)
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "payments-api is open" in page
    assert "Deployed web 4.2.0" in page
    assert "1 tenant<" in page
    for hidden in ("acme", "<form", 'href="/breakers', 'href="/incidents', "csrf"):
        assert hidden not in page
    assert answer["X-Robots-Tag"] == "noindex"
    assert answer["Cache-Control"] == "no-store"
    assert Client().post(path, secure=True).status_code == 405
    assert Client().get(f"{path[:-1]}{'a' if path[-1] != 'a' else 'b'}", secure=True).status_code == 404
    entry = Entry.objects.get(action="incident.shared")
    assert path.rpartition("/")[2] not in str(entry.after), "the audit has no link"
    end_links(environment=production, number=found.pk, actor=ADA)
    assert Client().get(path, secure=True).status_code == 404


def test_the_timeline_has_each_message_as_it_was_sent(production: str) -> None:
    """Also if an alert worsens twice, and its figures have changed since. A service is not named twice."""
    token, found = token_of("operator"), incident("p99", text="Redis p99 is 9 ms")
    pager, [row] = receiver(), Alert.objects.filter(incident=found)
    now = timezone.now()
    for place, text in ((1, "Redis p99 is 21 ms"), (2, "Redis p99 is 40 ms")):
        at = now + timedelta(seconds=place)
        Delivery.objects.create(
            receiver=pager, alert=row, kind="worsened", place=place, state=DeliveryState.SENT,
            document={"data": {"text": text}}, created_at=at, sent_at=at,
        )  # fmt: skip
    for values in ({"text": "Deployed web 4.2.0", "service": "web"}, {"text": "4.3.0", "service": "api"}):
        send(token, "POST", f"{API}/markers", values)
    text = send(token, "GET", f"{API}/incidents/{found.pk}/report?format=markdown").content.decode()
    assert f"Worsened alert sent to {pager.name}: Redis p99 is 21 ms" in text
    assert f"Worsened alert sent to {pager.name}: Redis p99 is 40 ms" in text
    assert "Deployed web 4.2.0 (" in text
    assert " 4.3.0 api (" in text


@pytest.mark.parametrize(
    ("key", "text", "shared"),
    [
        ("overdue:quota:acme/requests", "Overdue: quota requests of acme ends", "Alert overdue"),
        ("rejected", "web-acme-3 rejected the configuration", "Alert rejected"),
        ("unknown-revision:web-acme-3", "web-acme-3 reports revision 9.1", "Alert unknown-revision"),
        ("open:payments-api", "payments-api is open", "payments-api is open"),
    ],
)
def test_a_shared_link_names_no_tenant_and_no_pod(production: str, key: str, text: str, shared: str) -> None:
    create_people("ada")
    found = incident(key, text=text)
    if key != "open:payments-api":
        Alert.objects.update(subject_kind="server", subject_name="web-acme-3")
    Alert.objects.update(fired_at=timezone.now())
    path = make_link(environment=production, number=found.pk, days=3, actor=ADA)
    page = Client().get(path, secure=True).content.decode()
    assert f"<h1>{shared}</h1>" in page
    assert "Alert fired" in page
    assert "acme" not in page


def test_a_shared_link_names_no_person_of_the_staff(production: str) -> None:
    """It named who acknowledged, noted, overrode and marked. What they wrote is displayed."""
    create_people("ada")
    found, token = incident(), token_of("operator")
    row = Alert.objects.get(incident=found)
    send(token, "POST", f"{API}/alerts/{row.pk}/acknowledge", {"note": "I look at it"})
    send(token, "POST", f"{API}/incidents/{found.pk}/notes", {"text": "The vendor has an outage"})
    send(token, "POST", f"{API}/markers", {"text": "Deployed web 4.2.0"})
    step = {"runbook": "redis-unreachable", "step": 2, "text": "Look at it", "done": True}
    send(token, "POST", f"{API}/incidents/{found.pk}/steps", step)
    actors = set(Entry.objects.values_list("actor", flat=True))
    assert "token test operator" in actors
    path = make_link(environment=production, number=found.pk, days=3, actor=ADA)
    page = Client().get(path, secure=True).content.decode()
    for text in ("The vendor has an outage", "Deployed web 4.2.0", "Look at it", "Step 2 done"):
        assert text in page
    assert not [name for name in (*actors, ADA.name) if re.search(rf"\b{name}\b", page)]


def test_a_shared_link_ends(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = incident()
    path = make_link(environment=production, number=found.pk, days=1, actor=ADA)
    later = timezone.now() + timedelta(days=1, seconds=1)
    monkeypatch.setattr("controlplane.alerts.incidents.share.timezone.now", lambda: later)
    assert Client().get(path, secure=True).status_code == 404
    with pytest.raises(InvalidEdit, match="from 1 to 7"):
        make_link(environment=production, number=found.pk, days=8, actor=ADA)


def test_the_bound_is_that_of_the_pods_of_that_time(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = incident()
    Incident.objects.update(divisor=18)
    found.refresh_from_db()

    series = SimpleNamespace(fields={"decided_locally": [None, 0, 900], "pods_local": [None, 0, 18]})
    monkeypatch.setattr("controlplane.alerts.incidents.report.read", lambda *_, **__: series)
    bound = report_of(found).bound
    assert "900 calls locally, up to 18 pods" in bound
    assert "each of 18 pods allowed 1/18 of a limit" in bound
    series.fields = {"decided_locally": [40, 0], "pods_local": [1, 0]}
    assert "40 calls locally, up to 1 pod at once" in report_of(found).bound
    series.fields = {"decided_locally": [0, 0], "pods_local": [0, 0]}
    assert report_of(found).bound == "No pod decided locally, so every limit held."


def test_single_decisions_without_redis_are_no_outage_of_no_pod(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report and its Markdown said "up to 0 pods at once"."""
    found = incident()
    series = SimpleNamespace(fields={"decided_locally": [0, 5_157], "pods_local": [0, 0]})
    monkeypatch.setattr("controlplane.alerts.incidents.report.read", lambda *_, **__: series)
    single = "5,157 calls locally, as single decisions whose answer from Redis was late or an error"
    assert f"{single}: no pod was in fallback for 2 s or longer." in report_of(found).bound
    assert single in as_markdown(report_of(found))
    # For some seconds, which no figure of a whole minute shows.
    about = {"environment": production, "server": "web-1", "boot": "boot-1", "kind": "mode"}
    at = found.started_at + timedelta(seconds=10)
    Event.objects.create(detail="shared -> local: connection refused", at=at, **about)
    Event.objects.create(detail="local -> shared", at=at + timedelta(seconds=5), **about)
    assert "1 pod in fallback, each for less than a minute." in report_of(found).bound
    # The timeline of the report had "shared -> local", as the database stores it.
    assert "shared limits \u2192 local limits" in as_markdown(report_of(found))
    assert "shared -&gt; local" not in as_markdown(report_of(found))
    assert "0 pods" not in as_markdown(report_of(found))
    # Minutes in which figures are missing.
    Event.objects.filter(detail="local -> shared").update(at=at + timedelta(seconds=90))
    assert "1 pod in fallback. Of limits" in report_of(found).bound
    Event.objects.all().delete()
    found.started_at -= timedelta(days=40)
    assert "not stored any more whether a pod was in fallback. Of limits" in report_of(found).bound
