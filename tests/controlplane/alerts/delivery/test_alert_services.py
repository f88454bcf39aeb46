"""News to chats and pagers: the same rows, repetitions and limits as webhooks, and a text for people."""

from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.urls import resolve
from django.utils import timezone
from msgspec import json

from controlplane.alerts.delivery.apprise.jobs import MAX_BYTES, Kind
from controlplane.alerts.delivery.attempt import Message, job_of
from controlplane.alerts.delivery.claim import send_waiting
from controlplane.alerts.delivery.message import handled, links_of, text_of
from controlplane.alerts.delivery.queue import enqueue, enqueue_test
from controlplane.alerts.delivery.receivers import add_receiver, change_secret
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Delivery, DeliveryState, Receiver
from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.errors import InvalidEdit
from controlplane.policies.models import Dependency
from fuseboard.contract.words import OverrideMode
from tests.controlplane.alerts.delivery.sinks import Chat, chat
from tests.controlplane.alerts.delivery.test_alert_deliveries import Sink, alert, due, receiver, states
from tests.people import ADA

pytestmark = pytest.mark.django_db

TOKEN = "abcdefghijklmnop7Qz4"


@pytest.fixture
def sink(settings: Any) -> Iterator[Chat]:
    settings.WEBHOOK_NETWORKS = (ip_network("127.0.0.1/32"),)
    with chat() as sink:
        yield sink


def of(sink: Chat) -> Receiver:
    url = f"mmost://127.0.0.1:{sink.port}/{TOKEN}"
    return Receiver.objects.create(environment="production", name="chat", url=url)


def test_news_reaches_a_chat_in_order_and_is_repeated_after_a_failure(sink: Chat) -> None:
    of(sink)
    row = alert()
    sink.answers = [500]
    enqueue(row, AlertEvent.FIRED)
    assert send_waiting() == 1
    [first] = Delivery.objects.all()
    assert (first.state, first.attempts) == (DeliveryState.WAITING, 1)
    assert "error=500" in first.result
    enqueue(row, AlertEvent.RESOLVED)
    assert send_waiting() == 0, "the first waits for its next attempt"
    due()
    assert send_waiting() == 2
    assert set(states()) == {DeliveryState.SENT}
    texts = [document["text"] for _, document in sink.got]
    assert "Repeated" not in texts[0]
    assert "Repeated: an earlier attempt may have arrived." in texts[1]
    assert "Resolved in production: open:payments-api fires" in texts[2]


def test_a_test_reaches_a_chat_and_names_who_made_it(sink: Chat) -> None:
    enqueue_test(of(sink), by="ada")
    assert send_waiting() == 1
    assert Delivery.objects.get().result == "Mattermost accepted it."
    assert "ada tests the receiver chat." in sink.got[0][1]["text"]


def test_an_address_inside_is_not_tried_again(sink: Chat, settings: Any) -> None:
    of(sink)
    settings.WEBHOOK_NETWORKS = ()
    enqueue(alert(), AlertEvent.FIRED)
    send_waiting()
    [row] = Delivery.objects.all()
    assert (row.state, sink.got) == (DeliveryState.GAVE_UP, [])
    assert "FUSEBOARD_WEBHOOK_NETWORKS" in row.result


def test_a_late_resolve_does_not_end_the_next_alert_of_a_pager(sink: Chat) -> None:
    of(sink)
    before = alert(state=AlertState.RESOLVED, resolved_at=timezone.now())
    sink.answers = [200, 500]
    enqueue(before, AlertEvent.FIRED)
    send_waiting()
    [late] = enqueue(before, AlertEvent.RESOLVED)
    send_waiting()
    enqueue(alert(), AlertEvent.FIRED)
    assert send_waiting() == 1
    due()
    assert send_waiting() == 0
    late.refresh_from_db()
    assert (late.state, len(sink.got)) == (DeliveryState.SUPERSEDED, 3)


def test_level_3_and_first_attempts_come_before_repetitions() -> None:
    slow, pager = receiver("slow"), receiver("pager")
    enqueue(alert("open:a"), AlertEvent.FIRED)
    Delivery.objects.filter(receiver=slow).update(attempts=1, not_before=timezone.now() - timedelta(hours=1))
    enqueue(alert("down", level=3), AlertEvent.FIRED)
    sink = Sink()
    send_waiting(send=sink)
    firsts = [(url, document["data"]["key"]) for url, _, document in sink.got]
    assert {key for _, key in firsts[:2]} == {"down"}
    assert firsts[2:] == [(pager.url, "open:a"), (slow.url, "open:a")]


def test_a_message_says_what_since_when_how_bad_and_what_is_done(production: str, settings: Any) -> None:
    settings.ORIGINS = ["https://board.example.com"]
    receiver()
    at = timezone.now().replace(year=2026, month=5, day=4, hour=13, minute=12, second=9)
    row = alert(
        severity="warning",
        detail="18 of 30 calls failed.",
        true_since=at,
        subject_kind="breaker",
        subject_name="payments-api",
        runbook="breaker-open",
        acknowledged_by="olga",
        acknowledged_at=at + timedelta(minutes=3),
        note="called the vendor",
    )
    payments = Dependency.objects.create(environment_id=production, name="payments-api")
    Override.objects.create(
        dependency=payments, mode=OverrideMode.FORCED_OPEN, reason="vendor maintenance", actor="olga",
        created_at=at, expires_at=at + timedelta(hours=1), revision=1,
    )  # fmt: skip
    [delivery] = enqueue(row, AlertEvent.FIRED)
    data = delivery.document["data"]
    assert data["title"] == "Warning in production: open:payments-api fires"
    assert data["message"].splitlines() == [
        "18 of 30 calls failed.",
        "Warning since 2026-05-04 13:12 UTC. Level 2: for people on call.",
        "Calls are refused, or get the fallback if there is one. The breaker tests the dependency.",
        "An override of olga forces the breaker open until 2026-05-04 14:12 UTC: vendor maintenance",
        "olga acknowledged it at 2026-05-04 13:15 UTC: called the vendor",
        "Page: https://board.example.com/breakers/payments-api",
        "Runbook: https://board.example.com/runbooks/breaker-open?of=payments-api",
    ]
    assert data["handled"] == data["message"].splitlines()[2:5]
    row.resolved_at = at + timedelta(minutes=12)
    Delivery.objects.update(attempts=1)
    [ended] = enqueue(row, AlertEvent.RESOLVED)
    assert ended.document["data"]["message"].startswith("While it fired: 18 of 30 calls failed.\n")
    assert "From 2026-05-04 13:12 UTC to 2026-05-04 13:24 UTC: 12 min." in ended.document["data"]["message"]


def test_links_lead_to_pages_of_the_environment(settings: Any) -> None:
    settings.ORIGINS = []
    row = alert(runbook="redis-slow")
    row.environment = "staging"
    assert links_of(row) == {"page": None, "runbook": None}
    settings.ORIGINS = ["https://board.example.com", "https://other.example.com"]
    links = links_of(row)
    assert links["runbook"] == "https://board.example.com/env/staging/runbooks/redis-slow"
    of_breaker = alert("open:x", subject_kind="breaker", subject_name="x", runbook="breaker-open")
    of_pod = alert("silent:web-1", subject_kind="server", subject_name="web-1", runbook="server-silent")
    for one, page in ((row, "alerts"), (of_breaker, "breaker"), (of_pod, "server")):
        for link, leads_to in zip(links_of(one).values(), (page, "runbook"), strict=True):
            assert link is not None
            path = link.removeprefix("https://board.example.com").removeprefix("/env/staging")
            assert resolve(path.partition("?")[0]).url_name == leads_to


@pytest.mark.parametrize(
    ("key", "level", "lines"),
    [
        ("certificate", 1, ["not for people on call", "Nothing is done about it automatically."]),
        ("redis-ops:r1", 2, ["for people on call", "Nothing is done about it automatically."]),
        ("near:x", 1, ["handled automatically", "The breaker opens automatically at its threshold."]),
    ],
)
def test_a_message_says_that_nothing_is_done(key: str, level: int, lines: list[str]) -> None:
    row = alert(key, level=level)
    text = text_of(row, AlertEvent.FIRED.value, handled(row), ([], 0))
    assert all(line in text for line in lines), text
    assert "Nothing is done" not in text_of(row, AlertEvent.RESOLVED.value, handled(row), ([], 0))


@pytest.mark.parametrize(
    ("news", "severity", "kind"),
    [
        (AlertEvent.FIRED, "warning", Kind.WARNING),
        (AlertEvent.WORSENED, "critical", Kind.CRITICAL),
        (AlertEvent.RESOLVED, "critical", Kind.RESOLVED),
    ],
)
def test_all_news_of_an_alert_has_one_key_for_pagers(news: AlertEvent, severity: str, kind: Kind) -> None:
    receiver()
    row = alert(severity=severity)
    if news is AlertEvent.RESOLVED:
        enqueue(row, AlertEvent.FIRED)
        Delivery.objects.update(attempts=1)
    [delivery] = enqueue(row, news)
    url = "pagerduty://k@a"
    message = Message(id="1", attempt=1, document=delivery.document, receiver=1, url=url, versions=[1])
    job = job_of(message)
    assert (job.key, job.kind) == ("fb:production:open:payments-api", kind)
    message.document["data"]["key"] = "x" * 250
    assert len(job_of(message).key) <= 255


def _message(data: dict[str, Any]) -> Message:
    given = {"environment": "production", "key": "open:payments-api", "severity": "critical", **data}
    document = {"type": "alert.fired", "data": given}
    return Message(id="1", attempt=2, document=document, receiver=1, url="slack://a/b/c", versions=[1])


def test_a_document_of_a_release_before_the_services_is_sent() -> None:
    job = job_of(_message({"text": "payments-api is open", "detail": "18 of 30 calls failed."}))
    assert (job.title, job.link) == ("payments-api is open", "")
    assert job.body.startswith("payments-api is open")


def test_a_long_message_of_any_language_fits_into_a_job_with_its_links() -> None:
    data = {"text": "t", "title": "\U0001f525" * 250, "links": {"page": "https://board.example.com/alerts"}}
    text = "\U0001f525" * 20_000 + "\nPage: https://board.example.com/alerts"
    job = job_of(_message({**data, "message": text, "key": "k" * 250}))
    job.url = "slack://" + "a" * 1_990
    assert len(json.encode(job)) <= MAX_BYTES
    assert "Page: https://board.example.com/alerts\n" in job.body


def test_the_url_of_a_receiver_is_encrypted_in_the_table(settings: Any) -> None:
    row = receiver()
    with connection.cursor() as cursor:
        cursor.execute("SELECT url FROM alerts_receiver")
        [stored] = cursor.fetchone()
    assert "example" not in stored
    before, settings.SECRET_KEY = settings.SECRET_KEY, "k" * 60
    row.refresh_from_db()
    assert row.url == ""
    enqueue(alert(), AlertEvent.FIRED)
    send_waiting()
    assert "FUSEBOARD_SECRET_KEY_FALLBACKS" in Delivery.objects.get().result
    settings.SECRET_KEY_FALLBACKS = [before]
    call_command("renew_secrets")
    settings.SECRET_KEY_FALLBACKS = []
    row.refresh_from_db()
    assert row.url == "https://pager.example.com/hook"
    # An earlier release, during an update.
    with connection.cursor() as cursor:
        cursor.execute("UPDATE alerts_receiver SET url = 'https://pager.example.com/plain'")
    row.refresh_from_db()
    assert row.url == "https://pager.example.com/plain"
    call_command("renew_secrets")
    with connection.cursor() as cursor:
        cursor.execute("SELECT url FROM alerts_receiver")
        [stored] = cursor.fetchone()
    assert "example" not in stored
    row.refresh_from_db()
    assert row.url == "https://pager.example.com/plain"


def test_a_service_is_added_without_a_secret_and_its_url_is_in_no_audit(production: str) -> None:
    common: dict[str, Any] = {"environment": production, "reason": "the team has a chat", "actor": ADA}
    levels: dict[str, Any] = {"least_level": 2, "least_severity": "warning"}
    url = f"mmosts://chat.example.com/{TOKEN}"
    row, secret = add_receiver(name="chat", url=url, **common, **levels)
    assert (row.url, secret) == (url, "")
    after = Entry.objects.get(action="receiver.created").after
    assert after is not None
    assert after["url"] == "mmosts://chat.example.com/…7Qz4"
    with pytest.raises(InvalidEdit, match="Only webhooks have a secret"):
        change_secret(name="chat", **common)
    with pytest.raises(InvalidEdit, match="Leave out the option"):
        add_receiver(name="other", url=f"{url}?verify=no", **common, **levels)
