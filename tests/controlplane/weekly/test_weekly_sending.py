"""Weekly summaries are sent on Monday morning, once for each receiver and week, whatever workers do."""

from datetime import UTC, date, datetime, time, timedelta
from threading import Barrier, Thread
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections

from controlplane.alerts.delivery.apprise.jobs import Kind
from controlplane.alerts.delivery.attempt import Message, job_of
from controlplane.alerts.delivery.claim import send_waiting
from controlplane.alerts.delivery.receivers import add_receiver, set_weekly
from controlplane.alerts.models import Delivery, Receiver
from controlplane.audit.models import Entry
from controlplane.erasure import erase
from controlplane.errors import InvalidEdit, NotFound
from controlplane.weekly import send as sending
from controlplane.weekly.models import WeeklySummary
from controlplane.weekly.send import MAX_LINES, document_of, send_due, send_now
from tests.controlplane.alerts.delivery.test_alert_deliveries import Sink, receiver
from tests.controlplane.calling import API, problem, send, token_of
from tests.people import ADA

BEGINS = date(2026, 5, 4)
MORNING = datetime(2026, 5, 11, 8, 0, tzinfo=UTC)
WHY = "the team reads it on Mondays"


def line(name: str, **fields: Any) -> dict[str, Any]:
    usual = {"name": name, "found": "5 of 10 refused", "suggestion": "", "opens": "tenant", "key": name}
    return usual | {"limit": "", "size": None} | fields


def summary(*names: str, begins: date = BEGINS) -> WeeklySummary:
    section = {"title": "Tenants with most refused requests", "known": "All hours.", "nothing": "None."}
    sections = [section | {"lines": [line(name) for name in names], "more": 0}]
    return WeeklySummary.objects.create(environment="production", begins=begins, sections=sections)


def kinds() -> list[tuple[str, str]]:
    return sorted(Delivery.objects.values_list("receiver__name", "kind"))


def test_receivers_that_want_it_get_the_week_on_monday_morning_once(production: str) -> None:
    receiver("team", weekly=True)
    receiver("pager")
    receiver("gone", weekly=True, disabled_because="The receiver answered 410 Gone.")
    summary("acme")
    assert send_due(MORNING - timedelta(seconds=1)) == 0
    assert send_due(MORNING) == 1
    assert kinds() == [("team", "weekly")]
    receiver("late", weekly=True)
    assert send_due(MORNING + timedelta(days=3)) == 0, "it gets the next week"
    sink = Sink()
    assert send_waiting(send=sink) == 1
    [(_, _, document)] = sink.got
    assert document["type"] == "summary.weekly"
    assert document["data"]["ends"] == "2026-05-10"
    assert document["data"]["message"].startswith(
        "Tenants with most refused requests\n- acme: 5 of 10 refused."
    )
    row = WeeklySummary.objects.get()
    assert row.sent_at == MORNING


@pytest.mark.parametrize(
    ("zone", "at", "due"),
    [
        ("Europe/Berlin", time(8), datetime(2026, 5, 11, 6, 0, tzinfo=UTC)),
        ("America/New_York", time(7, 30), datetime(2026, 5, 11, 11, 30, tzinfo=UTC)),
        # Monday morning there is before the end of the week in UTC: as soon as it can be summarized.
        ("Asia/Tokyo", time(8), datetime(2026, 5, 11, 0, 30, tzinfo=UTC)),
    ],
)
def test_the_morning_is_that_of_the_zone(
    production: str, settings: Any, zone: str, at: time, due: datetime
) -> None:
    settings.WEEKLY_AT = (at, ZoneInfo(zone))
    receiver("team", weekly=True)
    summary("acme")
    assert send_due(due - timedelta(seconds=1)) == 0
    assert send_due(due) == 1


def test_an_older_week_is_not_sent_late(production: str) -> None:
    receiver("team", weekly=True)
    summary("acme", begins=BEGINS - timedelta(days=7))
    assert send_due(MORNING) == 0


def test_a_worker_that_is_killed_in_between_loses_and_repeats_nothing(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        receiver(name, weekly=True)
    summary("acme")
    enqueue, made = sending.enqueue_report, []

    def killed(row: Receiver, document: dict[str, Any]) -> Delivery:
        if made:
            raise KeyboardInterrupt
        made.append(row.name)
        return enqueue(row, document)

    with monkeypatch.context() as patched:
        patched.setattr(sending, "enqueue_report", killed)
        with pytest.raises(KeyboardInterrupt):
            send_due(MORNING)
    assert made == ["a"]
    assert kinds() == []
    assert send_due(MORNING) == 2
    assert kinds() == [("a", "weekly"), ("b", "weekly")]


@pytest.mark.django_db(transaction=True)
def test_workers_that_send_at_once_send_once(production: str) -> None:
    receiver("team", weekly=True)
    summary("acme")
    ready, made = Barrier(4), []

    def work() -> None:
        ready.wait(timeout=30)
        try:
            made.append(send_due(MORNING))
        finally:
            connections.close_all()

    workers = [Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert sorted(made) == [0, 0, 0, 1]
    assert kinds() == [("team", "weekly")]


def test_a_chat_gets_text_and_a_pager_nothing(production: str) -> None:
    names = [f"tenant-{number}" for number in range(MAX_LINES + 2)]
    document = document_of(summary(*names), by="ada")
    message = Message(
        id="1", attempt=1, document=document, receiver=1, url="mmosts://chat.example.com/t", versions=[1]
    )
    job = job_of(message)
    assert (job.kind, job.title) == (Kind.REPORT, "Week of 2026-05-04 in production")
    assert job.body.startswith("ada sent it.\n\nTenants with most")
    assert "- tenant-4: 5 of 10 refused.\n- and 2 more" in job.body
    common: dict[str, Any] = {"environment": production, "reason": WHY, "actor": ADA}
    url = f"pagerduty://{'k' * 32}@{'a' * 20}"
    with pytest.raises(InvalidEdit, match="A pager gets alerts only"):
        add_receiver(name="pager", url=url, least_level=1, least_severity="warning", weekly=True, **common)
    row = Receiver.objects.create(environment=production, name="pager", url=url)
    with pytest.raises(InvalidEdit, match="A pager gets alerts only"):
        set_weekly(name="pager", weekly=True, **common)
    with pytest.raises(InvalidEdit, match="A pager gets alerts only"):
        send_now(environment=production, begins=None, receiver=row.name, actor=ADA)


def test_an_admin_sends_it_now_and_again(production: str) -> None:
    admin, path = token_of("admin"), f"{API}/weekly-summary/send"
    problem(send(admin, "POST", path, {"receiver": "team"}), 404)
    summary("acme")
    problem(send(admin, "POST", path, {"receiver": "team"}), 404)
    receiver("team")
    for _ in range(2):
        sent = send(admin, "POST", f"{path}?week={BEGINS}", {"receiver": "team"})
        assert (sent.status_code, sent.json()["kind"], sent.json()["alert"]) == (202, "weekly", None)
    assert Delivery.objects.count() == 2
    assert WeeklySummary.objects.get().sent_at is None, "Monday's is still due"
    problem(send(admin, "POST", f"{path}?week=2026-04-27", {"receiver": "team"}), 404)
    with pytest.raises(NotFound):
        send_now(environment=production, begins=None, receiver="gone", actor=ADA)
    Receiver.objects.update(disabled_because="The receiver answered 410 Gone.")
    assert "Enable it first" in problem(send(admin, "POST", path, {"receiver": "team"}), 422)["detail"]


def test_the_choice_is_an_entry_of_the_audit(production: str) -> None:
    receiver("team")
    admin, path = token_of("admin"), f"{API}/receivers/team/weekly"
    assert send(admin, "PUT", path, {"weekly": True, "reason": WHY}).status_code == 200
    assert [one["weekly"] for one in send(admin, "GET", f"{API}/receivers").json()] == [True]
    entry = Entry.objects.get(action="receiver.weekly_set")
    assert (entry.before["weekly"], entry.after["weekly"]) == (False, True)


def test_an_erased_tenant_leaves_stored_messages(production: str) -> None:
    receiver("team", weekly=True)
    summary("acme", "globex")
    send_due(MORNING)
    erase(environment=production, kind="tenant", value="acme", reason="ticket PRIV-12", actor=ADA)
    [row] = Delivery.objects.all()
    assert "acme" not in str(row.document)
    assert "globex" in row.document["data"]["message"]
