"""News reaches each receiver at least once, in order, and also when a process dies in between."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone
from msgspec import json

from controlplane.alerts.delivery import http
from controlplane.alerts.delivery.addresses import AddressRefused
from controlplane.alerts.delivery.apprise import jobs
from controlplane.alerts.delivery.attempt import PAUSES_S
from controlplane.alerts.delivery.claim import (
    GIVE_UP_AFTER,
    LEASE_S,
    MAX_AT_ONCE,
    MAX_IN_5_MIN,
    MAX_REPEATED_AT_ONCE,
    send_waiting,
)
from controlplane.alerts.delivery.http import Answer, NotDelivered
from controlplane.alerts.delivery.queue import enqueue, enqueue_test
from controlplane.alerts.delivery.signing import secret_of
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Receiver
from controlplane.alerts.people.routing import read_address_book
from tests.controlplane.alerts.delivery.test_webhook_signing import accepts

pytestmark = pytest.mark.django_db


class Sink:
    """A receiver at the edge: remembers what arrives, and answers what a test wants."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    def __call__(self, url: str, body: bytes, headers: dict[str, str], **_: Any) -> Answer:
        self.got.append((url, headers, json.decode(body)))
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer, "", 0.0)

    @property
    def kinds(self) -> list[str]:
        return [document["type"] for _, _, document in self.got]


def receiver(name: str = "pager", **fields: Any) -> Receiver:
    return Receiver.objects.create(
        environment="production", name=name, url=f"https://{name}.example.com/hook", **fields
    )


def alert(key: str = "open:payments-api", **fields: Any) -> Alert:
    now = timezone.now()
    usual = {
        "state": AlertState.FIRING,
        "severity": "critical",
        "level": 2,
        "fired_at": now,
        "subject_kind": "servers",
        "true_since": now,
        "level_since": now,
    }
    return Alert.objects.create(
        environment="production",
        key=key,
        worst="critical",
        text=f"{key} fires",
        **(usual | fields),
    )


def due() -> None:
    Delivery.objects.update(not_before=timezone.now())


def states() -> list[str]:
    return list(Delivery.objects.order_by("created_at", "place").values_list("state", flat=True))


def test_fired_worsened_and_resolved_arrive_in_order_with_one_id_each() -> None:
    pager, row, sink = receiver(), alert(), Sink()
    for news in (AlertEvent.FIRED, AlertEvent.WORSENED, AlertEvent.RESOLVED):
        enqueue(row, news)
        send_waiting(send=sink)
    assert sink.kinds == ["alert.fired", "alert.worsened", "alert.resolved"]
    assert len({headers["webhook-id"] for _, headers, _ in sink.got}) == 3
    assert [document["data"]["sequence"] for _, _, document in sink.got] == [1, 2, 3]
    url, headers, document = sink.got[0]
    assert url == pager.url
    assert (
        document["data"] | {"key": "open:payments-api", "severity": "critical", "level": 2}
        == document["data"]
    )
    assert accepts(secret_of(pager.pk, 1), headers, json.encode(document))


@pytest.mark.parametrize(
    ("wants", "fields", "gets"),
    [
        ({}, {"level": 2, "severity": "warning"}, True),
        ({}, {"level": 1, "severity": "critical"}, False),
        ({"least_level": 1}, {"level": 1, "severity": "warning"}, True),
        ({"least_severity": "critical"}, {"severity": "warning"}, False),
        ({"least_severity": "critical"}, {"severity": "critical"}, True),
        ({"least_level": 3}, {"level": 2}, False),
        ({"disabled_because": "The receiver answered 410 Gone."}, {}, False),
    ],
)
def test_a_receiver_gets_what_it_wants(wants: dict[str, Any], fields: dict[str, Any], gets: bool) -> None:
    receiver(**wants)
    assert bool(enqueue(alert(**fields), AlertEvent.FIRED)) is gets


def test_who_got_fired_gets_resolved_and_nobody_else() -> None:
    pager = receiver()
    row, sink = alert(), Sink()
    enqueue(row, AlertEvent.FIRED)
    send_waiting(send=sink)
    receiver("later")
    Receiver.objects.filter(pk=pager.pk).update(least_level=3)
    enqueue(row, AlertEvent.RESOLVED)
    send_waiting(send=sink)
    assert [url for url, _, _ in sink.got] == [pager.url, pager.url]
    assert sink.kinds == ["alert.fired", "alert.resolved"]


def test_a_worsened_alert_is_fired_for_a_receiver_of_critical_ones() -> None:
    receiver(least_severity="critical")
    row, sink = alert(severity="warning"), Sink()
    assert enqueue(row, AlertEvent.FIRED) == []
    row.severity = "critical"
    enqueue(row, AlertEvent.WORSENED)
    send_waiting(send=sink)
    assert sink.kinds == ["alert.fired"]


def test_an_alert_that_is_resolved_before_anything_left_is_silent() -> None:
    receiver()
    row, sink = alert(), Sink()
    enqueue(row, AlertEvent.FIRED)
    assert enqueue(row, AlertEvent.RESOLVED) == []
    assert send_waiting(send=sink) == 0
    assert states() == [DeliveryState.SUPERSEDED]


def test_many_receivers_cost_as_many_queries_as_one(django_assert_num_queries: Any) -> None:
    for number in range(20):
        receiver(f"chat-{number}")
    row, book = alert("local"), read_address_book("production")
    at = timezone.now()
    for news, queries in ((AlertEvent.FIRED, 3), (AlertEvent.WORSENED, 3)):
        with django_assert_num_queries(queries):
            assert len(enqueue(row, news, book, at)) == 20
    Delivery.objects.filter(receiver__name="chat-7").update(state=DeliveryState.SENT, attempts=1)
    with django_assert_num_queries(5):
        assert [one.receiver.name for one in enqueue(row, AlertEvent.RESOLVED, book, at)] == ["chat-7"]
    assert Delivery.objects.filter(state=DeliveryState.SUPERSEDED).count() == 38


def test_a_message_names_the_first_of_what_it_explains() -> None:
    receiver()
    cause = alert("local")
    for number in range(12):
        alert(f"p99:{number}", cause=cause, true_since=cause.true_since + timedelta(seconds=number))
    [one] = enqueue(cause, AlertEvent.FIRED)
    assert one.document["data"]["explains"] == [f"p99:{number} fires" for number in range(10)]
    assert one.document["data"]["explained"] == 12


def test_resolved_waits_for_fired() -> None:
    receiver()
    row, sink = alert(), Sink(500)
    enqueue(row, AlertEvent.FIRED)
    send_waiting(send=sink)
    enqueue(row, AlertEvent.RESOLVED)
    assert send_waiting(send=sink) == 0, "the first waits for its next attempt"
    due()
    send_waiting(send=sink)
    assert sink.kinds == ["alert.fired", "alert.fired", "alert.resolved"]
    assert sink.got[0][1]["webhook-id"] == sink.got[1][1]["webhook-id"]


@pytest.mark.parametrize("failure", [500, 302, 429, NotDelivered("ConnectError: refused")])
def test_a_failed_attempt_is_made_again_later_and_later(failure: int | Exception) -> None:
    receiver()
    enqueue(alert(), AlertEvent.FIRED)
    for number, pause in enumerate((*PAUSES_S, PAUSES_S[-1]), 1):
        now = timezone.now()
        assert send_waiting(send=Sink(failure)) == 1
        [row] = Delivery.objects.all()
        assert (row.state, row.attempts) == (DeliveryState.WAITING, number)
        waits = (row.not_before - now).total_seconds()
        assert pause * 0.8 - 5 <= waits <= pause * 1.2 + 5
        due()
    Delivery.objects.update(created_at=F("created_at") - GIVE_UP_AFTER)
    send_waiting(send=Sink(failure))
    [row] = Delivery.objects.all()
    assert row.state == DeliveryState.GAVE_UP
    assert row.result


def test_a_receiver_that_is_gone_is_disabled_and_an_address_inside_is_not_tried_again() -> None:
    pager, inside = receiver(), receiver("inside")
    enqueue(alert(), AlertEvent.FIRED)
    refused = AddressRefused("inside.example.com", "127.0.0.1")

    def answer(url: str, *_: Any, **__: Any) -> Answer:
        if url == inside.url:
            raise refused
        return Answer(410, "", 0.0)

    assert send_waiting(send=answer) == 2
    assert states() == [DeliveryState.GAVE_UP, DeliveryState.GAVE_UP]
    pager.refresh_from_db(), inside.refresh_from_db()
    assert (bool(pager.disabled_because), bool(inside.disabled_because)) == (True, False)
    assert "FUSEBOARD_WEBHOOK_NETWORKS" in Delivery.objects.get(receiver=inside).result


class Killed(BaseException):
    """As SIGKILL: no handler runs."""


def killed_before(url: str, *_: Any, **__: Any) -> Answer:
    raise Killed


def killed_after(sink: Sink) -> Callable[..., Answer]:
    def send(*args: Any, **more: Any) -> Answer:
        sink(*args, **more)
        raise Killed

    return send


@pytest.mark.parametrize("arrived", [False, True])
def test_a_process_that_dies_while_it_sends_loses_nothing(arrived: bool) -> None:
    receiver()
    enqueue(alert(), AlertEvent.FIRED)
    sink = Sink()
    with pytest.raises(Killed):
        send_waiting(send=killed_after(sink) if arrived else killed_before)
    assert states() == [DeliveryState.SENDING]
    assert send_waiting(send=sink) == 0, "its lease has not ended"
    Delivery.objects.update(lease_until=F("lease_until") - timedelta(seconds=LEASE_S))
    assert send_waiting(send=sink) == 1
    assert states() == [DeliveryState.SENT]
    assert len(sink.got) == (2 if arrived else 1)
    assert len({headers["webhook-id"] for _, headers, _ in sink.got}) == 1


def test_a_process_that_was_paused_past_its_lease_changes_nothing() -> None:
    receiver()
    enqueue(alert(), AlertEvent.FIRED)
    sink = Sink()

    def paused(*args: Any, **more: Any) -> Answer:
        Delivery.objects.update(lease_until=F("lease_until") - timedelta(seconds=LEASE_S))
        assert send_waiting(send=sink) == 1, "another process sends it"
        return Answer(500, "", 0.0)

    send_waiting(send=paused)
    assert states() == [DeliveryState.SENT]


def test_one_receiver_is_sent_to_by_one_process_and_few_at_once() -> None:
    for number in range(MAX_AT_ONCE + 1):
        receiver(f"r{number}")
    enqueue(alert(), AlertEvent.FIRED)
    enqueue(alert("lag"), AlertEvent.FIRED)
    busy: list[str] = []

    def nested(url: str, *_: Any, **__: Any) -> Answer:
        assert url not in busy
        assert len(busy) < MAX_AT_ONCE
        busy.append(url)
        if len(busy) < MAX_AT_ONCE + 1:
            send_waiting(send=nested, for_s=0.2)
        busy.remove(url)
        return Answer(200, "", 0.0)

    send_waiting(send=nested)
    assert set(states()) == {DeliveryState.SENT}


def test_receivers_that_hang_again_leave_room_for_first_attempts() -> None:
    """Repetitions to three receivers are due: two are begun, and the news of a fourth is not held back."""
    for number in range(MAX_REPEATED_AT_ONCE + 1):
        receiver(f"hangs-{number}")
    enqueue(alert(), AlertEvent.FIRED)
    send_waiting(send=Sink(*(MAX_REPEATED_AT_ONCE + 1) * [500]))
    due()
    begun: list[str] = []

    def hangs(url: str, *_: Any, **__: Any) -> Answer:
        begun.append(url)
        if len(begun) == MAX_REPEATED_AT_ONCE:
            receiver("other")
            enqueue(alert("lag", true_since=timezone.now()), AlertEvent.FIRED)
            Delivery.objects.filter(alert__key="lag").exclude(receiver__name="other").delete()
        if len(begun) <= MAX_REPEATED_AT_ONCE:
            send_waiting(send=hangs, for_s=0.2)
        return Answer(200, "", 0.0)

    send_waiting(send=hangs)
    assert begun.index("https://other.example.com/hook") == MAX_REPEATED_AT_ONCE
    assert set(states()) == {DeliveryState.SENT}


def test_first_attempts_to_receivers_that_hang_delay_no_other_receiver() -> None:
    """Each of as many receivers as are sent to at once hangs, and has more news than one."""
    for number in range(MAX_AT_ONCE):
        receiver(f"hangs-{number}")
    enqueue(alert("open:first"), AlertEvent.FIRED)
    send_waiting(send=Sink(*MAX_AT_ONCE * [NotDelivered("no answer within 20 s")]))
    for number in range(3):
        enqueue(alert(f"open:dep-{number}"), AlertEvent.FIRED)
    other = receiver("other")
    [news] = [one for one in enqueue(alert("lag"), AlertEvent.FIRED) if one.receiver_id == other.pk]
    begun: list[str] = []

    def hangs(url: str, *_: Any, **__: Any) -> Answer:
        begun.append(url)
        # Its claim stays, as that of an attempt that waits.
        raise Killed

    for _ in range(MAX_AT_ONCE):
        with suppress(Killed):
            send_waiting(send=hangs)
    news.refresh_from_db()
    assert (news.state, begun[0]) == (DeliveryState.SENDING, other.url)
    assert len(begun) == 1 + MAX_REPEATED_AT_ONCE, "the other hanging ones wait, also for first attempts"


def test_a_repetition_of_level_3_and_one_to_a_receiver_that_mostly_works_come_first() -> None:
    receiver("hangs")
    for number in range(3):
        enqueue(alert(f"open:dep-{number}"), AlertEvent.FIRED)
    receiver("flaky")
    pager = receiver("pager", least_level=3)
    Receiver.objects.filter(name="hangs").update(least_severity="critical")
    enqueue(alert("lag", severity="warning"), AlertEvent.FIRED)
    enqueue(alert("redis-down", level=3), AlertEvent.FIRED)
    Delivery.objects.filter(alert__level=3).exclude(receiver=pager).delete()
    send_waiting(send=Sink(*5 * [503]))
    due()
    sink = Sink()
    send_waiting(send=sink)
    urls = [url.removeprefix("https://").partition(".")[0] for url, _, _ in sink.got]
    assert urls == ["pager", "flaky", "hangs", "hangs", "hangs"]


def test_many_messages_wait_but_level_3_does_not() -> None:
    receiver()
    sink = Sink()
    for number in range(MAX_IN_5_MIN + 5):
        enqueue(alert(f"open:dep-{number}"), AlertEvent.FIRED)
    assert send_waiting(send=sink) == MAX_IN_5_MIN
    enqueue(alert("down", level=3), AlertEvent.FIRED)
    assert send_waiting(send=sink) == 1
    assert sink.got[-1][2]["data"]["key"] == "down"
    Delivery.objects.update(sent_at=F("sent_at") - timedelta(minutes=6))
    assert send_waiting(send=sink) == 5


def test_a_test_says_who_sent_it_and_is_not_repeated() -> None:
    sink = Sink(500)
    enqueue_test(receiver(), by="ada")
    send_waiting(send=sink)
    assert sink.got[0][2]["data"]["text"] == "ada tests the receiver pager."
    assert states() == [DeliveryState.GAVE_UP]


def test_during_a_change_of_the_secret_both_sign(settings: Any) -> None:
    pager, sink = receiver(secret_version=2, old_secret_until=timezone.now() + timedelta(hours=1)), Sink()
    enqueue(alert(), AlertEvent.FIRED)
    send_waiting(send=sink)
    _, headers, document = sink.got[0]
    assert accepts(secret_of(pager.pk, 1), headers, json.encode(document))
    assert accepts(secret_of(pager.pk, 2), headers, json.encode(document))


def test_an_attempt_ends_long_before_its_lease() -> None:
    assert 2 * max(http.MAX_S, jobs.MAX_S) < LEASE_S
