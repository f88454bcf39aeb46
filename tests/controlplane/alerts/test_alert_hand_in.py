"""What gateways keep and hand in for the time without Postgres: files, the journal, and the way back."""

import time
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone
from msgspec import json, structs
from structlog.testing import capture_logs

from controlplane.alerts.delivery.apprise.program import SenderPool
from controlplane.alerts.delivery.attempt import send_once
from controlplane.alerts.delivery.http import Answer
from controlplane.alerts.delivery.queue import enqueue
from controlplane.alerts.delivery.watchdog import ping, ping_if_evaluated
from controlplane.alerts.emergency.hand_in import gateways_may_have_sent, hand_in
from controlplane.alerts.emergency.journal import MAX_EPISODES, Episode, Journal, message_id
from controlplane.alerts.emergency.plan import EmergencyPlan, is_muted, read_plans, receivers_of
from controlplane.alerts.emergency.plan_files import MAX_BYTES, read_plan_files, write_plan
from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Alert, Delivery, Evaluation, Mute, Receiver, Route
from controlplane.fleet import signing
from controlplane.fleet.models import Figures
from controlplane.gateway.counts import Counts
from controlplane.gateway.emergency.send import messages_for
from controlplane.gateway.emergency.turns import _SALT, PATH, OncallAnswer
from controlplane.gateway.emergency.watch import Emergency
from tests.controlplane.alerts.delivery.test_webhook_http import ok, receiver
from tests.controlplane.gateway.manual_gateway import client, ready_gateway

needs_postgres = pytest.mark.django_db
URL = "https://hooks.example.com/services/T0/secret-part"


def plan(**fields: Any) -> EmergencyPlan:
    return EmergencyPlan(**{"environment": "production", "at": 1_000.0, **fields})


def episode(key: str = "redis-down", **fields: Any) -> Episode:
    usual: dict[str, Any] = {
        "environment": "production",
        "severity": "critical",
        "level": 3,
        "text": "Redis is down",
        "detail": "",
        "runbook": "redis-unreachable",
        "subject_kind": "servers",
        "true_since": time.time() - 60,
        "fired_at": time.time() - 50,
    }
    return Episode(key=key, **{**usual, **fields})


def test_a_plan_is_read_back_and_only_this_user_can_read_it(tmp_path: Path, settings: Any) -> None:
    kept = plan(receivers=[{"pk": 1, "url": URL}], known=["redis-down"])
    write_plan(tmp_path, kept)
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"hooks" not in file.read_bytes()
    assert read_plan_files(tmp_path) == {"production": kept}
    # A new key reads what the old one wrote, for as long as the old one is accepted.
    old, settings.SECRET_KEY = settings.SECRET_KEY, "a new key that is long enough for anything"
    assert read_plan_files(tmp_path) == {}
    settings.SECRET_KEY_FALLBACKS = [old]
    assert read_plan_files(tmp_path) == {"production": kept}


def test_a_file_that_was_changed_or_cut_is_not_read_and_the_others_are(tmp_path: Path) -> None:
    for environment in ("production", "staging", "test"):
        write_plan(tmp_path, plan(environment=environment))
    changed = bytearray((tmp_path / "staging.plan").read_bytes())
    changed[40] ^= 1
    (tmp_path / "staging.plan").write_bytes(changed)
    cut = (tmp_path / "test.plan").read_bytes()
    (tmp_path / "test.plan").write_bytes(cut[: len(cut) // 2])
    assert list(read_plan_files(tmp_path)) == ["production"]


def test_a_plan_that_is_too_large_replaces_nothing(tmp_path: Path) -> None:
    write_plan(tmp_path, plan())
    large = [{"pk": 1, "url": "x" * MAX_BYTES}]
    with pytest.raises(OSError, match="more than"):
        write_plan(tmp_path, plan(receivers=large))
    assert read_plan_files(tmp_path) == {"production": plan()}


def test_a_gateway_whose_folder_cannot_be_written_says_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    gateway = ready_gateway(oncall_dir=str(tmp_path / "file"))
    emergency = Emergency(gateway.fleets, gateway.settings, gateway.clock, Counts())
    with capture_logs() as logs:
        emergency._keep_in_thread({"production": plan()})
    assert [line["event"] for line in logs] == ["oncall.plan_not_written"]


def test_a_journal_knows_after_a_crash_what_may_have_arrived(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    one = episode()
    one.messages = messages_for(one, [Receiver(pk=4)], plan())
    journal.add(one)
    one.messages[0].state = "sending"
    journal.save()
    # As another process reads it.
    again = Journal(tmp_path / "journal.json")
    [read] = again.episodes
    assert (read.messages[0].state, read.messages[0].id) == ("waiting", one.messages[0].id)
    assert again.open("production", "redis-down") is read
    assert again.sent_lately("production", "redis-down", one.true_since)
    assert not again.sent_lately("production", "redis-down", one.true_since + 1_200)
    assert again.unhanded("production") == 1


def test_a_journal_is_bounded_and_an_unreadable_one_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    for n in range(MAX_EPISODES + 5):
        journal.add(episode(fired_at=float(n), over_at=float(n) if n % 2 else None))
    assert len(journal.episodes) == MAX_EPISODES
    assert journal.episodes[0].fired_at == 0.0, "one that is not over is kept"
    (tmp_path / "journal.json").write_bytes(b"{")
    assert Journal(tmp_path / "journal.json").episodes == []
    assert (tmp_path / "journal.unreadable").read_bytes() == b"{"


def test_gateways_make_the_same_ids_for_alerts_of_the_same_minutes() -> None:
    pager, chat = Receiver(pk=1), Receiver(pk=2)
    first, second = episode(true_since=6_000.0), episode(true_since=6_002.5)
    assert message_id(first, pager) == message_id(second, pager)
    assert len({message_id(first, pager), message_id(first, chat), message_id(episode(), pager)}) == 3


@needs_postgres
def test_a_plan_has_receivers_routes_and_mutes_of_its_environment(production: str) -> None:
    for name in ("pager", "chat", "mail"):
        Receiver.objects.create(environment=production, name=name, url=URL)
    Receiver.objects.create(environment="staging", name="other", url=URL)
    steps = [[0, ["pager"]], [15, ["mail"]]]
    Route.objects.create(environment=production, name="night", least_level=3, steps=steps)
    now = timezone.now()
    Mute.objects.create(
        environment=production,
        rule="redis-down",
        by="ada",
        starts_at=now,
        ends_at=now + timedelta(minutes=30),
    )
    # As it is on disk.
    read = json.decode(json.encode(read_plans(now.timestamp()).plans[production]), type=EmergencyPlan)
    assert [one["name"] for one in read.receivers] == ["chat", "mail", "pager"]
    alert = Alert(environment=production, key="postgres-down", level=3, severity="critical")
    wanted, later = receivers_of(read, alert, now)
    assert [row.name for row in wanted] == ["pager"]
    assert later == [[now.timestamp() + 900, ["mail"]]]
    assert not is_muted(read, alert, now)
    muted = Alert(environment=production, key="redis-down", level=3, severity="critical")
    assert is_muted(read, muted, now + timedelta(minutes=29))
    assert not is_muted(read, muted, now + timedelta(minutes=31))


def told(receiver: Receiver, *, state: str = "sent") -> Episode:
    one = episode()
    one.messages = messages_for(one, [receiver], plan())
    for message in one.messages:
        message.state, message.attempts, message.sent_at = state, 1, time.time() - 49
    return one


def kinds() -> list[str]:
    return list(Delivery.objects.order_by("place", "created_at").values_list("kind", flat=True))


@needs_postgres
def test_what_a_gateway_sent_is_not_sent_again_and_ends_once(production: str) -> None:
    pager = Receiver.objects.create(environment=production, name="pager", url=URL)
    one = told(pager)
    for _ in range(2):
        hand_in([one])
    row = Alert.objects.get()
    assert (row.state, row.notified, row.level, row.fired_at.timestamp()) == (
        *("firing", "critical", 3),
        pytest.approx(one.fired_at),
    )
    delivery = Delivery.objects.get()
    assert (str(delivery.pk), delivery.state) == (one.messages[0].id, "sent")
    evaluate_environment(production)
    assert kinds() == ["fired"]
    # The rule sees gateways again, and the condition is gone for long enough.
    Figures.objects.create(gateway="gw", environment=production, document={})
    evaluate_environment(production)
    Alert.objects.update(clear_since=timezone.now() - timedelta(seconds=31))
    evaluate_environment(production)
    assert Alert.objects.get().state == AlertState.RESOLVED
    assert kinds() == ["fired", "resolved"]
    # Another gateway could not reach this one, and told the same receiver under the same id.
    hand_in([one])
    assert kinds() == ["fired", "resolved"]


@needs_postgres
def test_a_message_on_its_way_is_sent_on_by_the_worker_under_its_id(production: str) -> None:
    pager = Receiver.objects.create(environment=production, name="pager", url=URL)
    one = told(pager, state="waiting")
    hand_in([one])
    delivery = Delivery.objects.get()
    assert (str(delivery.pk), delivery.state, delivery.attempts) == (one.messages[0].id, "waiting", 1)


@needs_postgres
def test_an_alert_that_is_over_already_ends_for_those_that_learn_of_it_late(production: str) -> None:
    pager = Receiver.objects.create(environment=production, name="pager", url=URL)
    chat = Receiver.objects.create(environment=production, name="chat", url=URL)
    hand_in([told(pager)])
    row = Alert.objects.get()
    enqueue(row, AlertEvent.RESOLVED)
    Alert.objects.update(state=AlertState.RESOLVED, resolved_at=timezone.now())
    hand_in([told(chat)])
    assert Alert.objects.count() == 1
    assert [one.kind for one in Delivery.objects.filter(receiver=chat).order_by("place")] == [
        "fired",
        "resolved",
    ]
    assert Delivery.objects.filter(receiver=pager, kind="resolved").count() == 1


@needs_postgres
def test_an_alert_that_was_pending_is_taken_over(production: str) -> None:
    now = timezone.now()
    Alert.objects.create(
        environment=production,
        key="redis-down",
        level=3,
        severity="critical",
        worst="critical",
        state=AlertState.PENDING,
        true_since=now,
        level_since=now,
    )
    one = told(Receiver.objects.create(environment=production, name="pager", url=URL))
    hand_in([one])
    row = Alert.objects.get()
    assert (row.state, row.true_since.timestamp()) == ("firing", pytest.approx(one.true_since))


@needs_postgres
def test_the_evaluator_waits_until_gateways_have_handed_in(production: str) -> None:
    now = timezone.now()
    alert = Alert(environment=production, key="redis-down", level=3, fired_at=now)

    def waits(seconds: float = 1.0) -> bool:
        return gateways_may_have_sent(alert, now.timestamp() + seconds)

    assert not waits()
    row = Figures.objects.create(gateway="gw", environment=production, document={"unhanded": 1})
    assert waits()
    assert not waits(60), "nobody is silenced for ever"
    Figures.objects.filter(pk=row.pk).update(document={"unhanded": 0})
    assert not waits()
    # It reported before a pause, and does not yet.
    Figures.objects.filter(pk=row.pk).update(at=now - timedelta(minutes=5))
    evaluation = Evaluation.objects.create(
        environment=production, at=now, paused_at=now - timedelta(minutes=5), resumed_at=now
    )
    assert waits()
    Figures.objects.filter(pk=row.pk).update(at=now - timedelta(minutes=6))
    assert not waits(), "it had stopped before"
    evaluation.delete()
    evaluate_environment(production)
    Evaluation.objects.update(at=timezone.now() - timedelta(seconds=40))
    evaluate_environment(production)
    last = Evaluation.objects.get()
    assert last.paused_at is not None
    assert last.resumed_at is not None
    assert 39 < (last.resumed_at - last.paused_at).total_seconds() < 60


async def test_another_gateway_learns_what_was_sent_and_a_stranger_does_not(tmp_path: Path) -> None:
    gateway = ready_gateway(oncall_dir=str(tmp_path))
    gateway.emergency = emergency = Emergency(gateway.fleets, gateway.settings, gateway.clock, Counts())
    emergency.journal.add(episode(true_since=5.0))
    emergency.journal.add(episode("postgres-down", over_at=9.0))

    async def ask(body: bytes, authorization: str) -> httpx.Response:
        async with client(gateway) as http:
            return await http.post(PATH, content=body, headers={"authorization": authorization})

    now_us = int(gateway.clock.wall() * 1_000_000)
    body = json.encode({"environment": "production", "at_us": now_us})
    reply = await ask(body, signing.sign(body, salt=_SALT))
    assert json.decode(reply.content, type=OncallAnswer).reported == [("redis-down", 5.0)]
    assert (await ask(body, "Bearer x")).status_code == 401
    assert (await ask(body, signing.sign(body, salt="another"))).status_code == 401
    late = json.encode({"environment": "production", "at_us": now_us - 3_600_000_000})
    assert (await ask(late, signing.sign(late, salt=_SALT))).status_code == 422
    assert (await ask(b"x" * 600, "")).status_code == 413
    async with client(gateway) as http:
        assert (await http.get(PATH)).status_code == 405
    await emergency.close()


def test_a_watchdog_pings_public_addresses_only(settings: Any) -> None:
    with receiver(ok) as (port, got):
        settings.WATCHDOG_URL = f"http://127.0.0.1:{port}/ping/secret"
        settings.WEBHOOK_NETWORKS = ()
        assert (ping(), got) == ("refused", [])
        settings.WEBHOOK_NETWORKS = (ip_network("127.0.0.0/8"),)
        assert ping() == "ok"
    assert got[0][0] == "/ping/secret"
    assert ping() == "failed"


@needs_postgres
def test_a_worker_pings_only_while_every_environment_is_evaluated(production: str, settings: Any) -> None:
    with receiver(ok) as (port, got):
        settings.WATCHDOG_URL = f"http://127.0.0.1:{port}/ping"
        settings.WEBHOOK_NETWORKS = (ip_network("127.0.0.0/8"),)
        ping_if_evaluated()
        assert got == []
        evaluate_environment(production)
        ping_if_evaluated()
        assert len(got) == 1
        Evaluation.objects.update(at=timezone.now() - timedelta(seconds=31))
        ping_if_evaluated()
    assert len(got) == 1


def test_a_plan_that_is_only_younger_is_not_another_one() -> None:
    assert structs.replace(plan(at=1.0), at=2.0) == plan(at=2.0)


def test_the_worker_and_gateways_wait_as_long_as_the_receiver_asks() -> None:
    def busy(*_: Any, **__: Any) -> Answer:
        return Answer(503, "busy", 600.0)

    pager = Receiver(pk=1, url=URL, secret_version=1)
    outcome = send_once(
        pager, SenderPool(), timezone.now(), identity="m", number=1, document={"data": {}}, webhook=busy
    )
    assert (outcome.state, outcome.wait_s, outcome.result) == ("waiting", 600.0, "HTTP 503 busy")
