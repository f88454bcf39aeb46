"""An alert that no person acknowledges goes to the next receivers, each step once."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.alerts.models import Alert, Delivery, Evaluation
from controlplane.alerts.people.acknowledge import acknowledge_alert, release_alert
from controlplane.alerts.people.mute_edits import MuteValues, add_mute
from controlplane.alerts.people.route_edits import RouteValues, put_route
from controlplane.alerts.people.routing import DEFAULT
from controlplane.celery import app
from controlplane.errors import InvalidEdit
from tests.controlplane.alerts.delivery.test_alert_deliveries import receiver
from tests.controlplane.alerts.test_alert_evaluator import ADA, evaluate, fire, measure
from tests.controlplane.monitoring.test_worker_metrics import WITHIN_S, worker_of
from tests.waiting import wait_until
from tools.demo.processes import Processes

pytestmark = pytest.mark.django_db(transaction=True)
WHY = "the team has a pager"


def route(*escalations: tuple[int, tuple[str, ...]]) -> None:
    put_route(
        environment="production",
        name=DEFAULT,
        values=RouteValues(receivers=("chat",), escalations=escalations),
        place=None,
        reason=WHY,
        actor=ADA,
    )


@pytest.fixture
def fired(production: str) -> Alert:
    for name in ("chat", "pager", "boss"):
        receiver(name, least_level=1)
    route((10, ("pager",)), (30, ("boss", "pager")))
    fire()
    assert sent() == [("fired", "chat")]
    return Alert.objects.get()


def sent() -> list[tuple[str, str]]:
    return list(
        Delivery.objects.order_by("created_at", "receiver__name").values_list("kind", "receiver__name")
    )


def wait(minutes: int) -> None:
    """As if the alert had been sent earlier."""
    row = Alert.objects.get()
    Alert.objects.update(escalations=[[at - minutes * 60, names] for at, names in row.escalations])
    measure(5.0)
    evaluate()


def test_each_step_is_sent_once_and_in_time(fired: Alert) -> None:
    wait(9)
    assert len(sent()) == 1
    wait(1)
    wait(0)
    assert sent()[1:] == [("escalated", "pager")]
    wait(20)
    wait(600)
    assert sent()[2:] == [("escalated", "boss"), ("escalated", "pager")]
    assert Alert.objects.get().escalations == []
    Delivery.objects.update(state="sent", attempts=1)
    measure(0.0)
    evaluate()
    Alert.objects.update(clear_since=F("clear_since") - timedelta(hours=1))
    measure(0.0)
    evaluate()
    assert sent()[4:] == [("resolved", "boss"), ("resolved", "chat"), ("resolved", "pager")]


def test_an_acknowledgement_stops_the_steps_and_its_withdrawal_continues_them(fired: Alert) -> None:
    acknowledge_alert(environment="production", number=fired.pk, note="", actor=ADA)
    wait(20)
    assert len(sent()) == 1
    release_alert(environment="production", number=fired.pk, note="", actor=ADA)
    wait(0)
    assert sent()[1:] == [("escalated", "pager")]


def test_steps_are_counted_by_the_clock_of_postgres(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chat", "pager"):
        receiver(name, least_level=1)
    route((10, ("pager",)))
    before = timezone.now()
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(hours=1))
    fire()
    [[at, _]] = Alert.objects.get().escalations
    assert 0 <= at - before.timestamp() - 600 < 900, "the clock of the worker is an hour ahead"
    row = add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    assert (row.starts_at - before).total_seconds() < 900
    wait(60)
    assert sent() == [("fired", "chat")], "the mute applies at once"


def test_an_acknowledged_alert_locks_and_reads_nothing(fired: Alert) -> None:
    acknowledge_alert(environment="production", number=fired.pk, note="", actor=ADA)
    with CaptureQueriesContext(connection) as captured:
        wait(60)
    tables = ("alerts_receiver", "alerts_route", "alerts_mute")
    for query in captured:
        assert "FOR UPDATE" not in query["sql"] or "alerts_alert" not in query["sql"]
        assert not any(table in query["sql"] for table in tables), query["sql"]


def test_steps_that_a_dead_worker_missed_are_one_message(fired: Alert) -> None:
    wait(60)
    assert sent()[1:] == [("escalated", "boss"), ("escalated", "pager")]


def test_a_muted_alert_does_not_escalate(fired: Alert) -> None:
    add_mute(environment="production", values=MuteValues(rule="429"), reason=WHY, actor=ADA)
    wait(60)
    assert len(sent()) == 1


def test_a_change_of_the_route_applies_to_later_alerts(fired: Alert) -> None:
    route()
    wait(10)
    assert sent()[1:] == [("escalated", "pager")]


def test_wrong_steps_are_named(production: str) -> None:
    receiver("chat"), receiver("pager")
    for steps in (
        ((0, ("pager",)),),
        ((2_000, ("pager",)),),
        ((10, ("pager",)), (10, ("chat",))),
        ((10, ()),),
        tuple((minutes, ("pager",)) for minutes in (1, 2, 3, 4)),
    ):
        with pytest.raises(InvalidEdit) as refused:
            route(*steps)
        assert list(refused.value.errors) == ["escalations"]
    with pytest.raises(InvalidEdit, match="There is no receiver 'gone'"):
        route((10, ("gone",)))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "logs")
    yield processes
    processes.stop("worker")


def _waits_for_deliveries() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_locks WHERE relation = 'alerts_delivery'::regclass AND NOT granted")
        return cursor.fetchone() is not None


def test_a_worker_that_is_killed_while_it_escalates_sends_the_step_once(
    fired: Alert, processes: Processes, limits: Any, tmp_path: Path, settings: Any
) -> None:
    row = Alert.objects.get()
    Alert.objects.update(escalations=[[at - 600, names] for at, names in row.escalations])
    measure(5.0)
    worker = processes.add(worker_of("threads", tmp_path, FUSEBOARD_SECRET_KEY=settings.SECRET_KEY))
    processes.begin("worker")
    with transaction.atomic():
        with connection.cursor() as cursor:
            # The worker has taken the step, and waits to store its delivery.
            cursor.execute("LOCK TABLE alerts_delivery IN EXCLUSIVE MODE")
        app.send_task("alerts.evaluate", queue="metrics-threads")
        wait_until(_waits_for_deliveries, "the worker escalates", within_s=WITHIN_S)
        assert worker.popen is not None
        worker.popen.kill()
        worker.popen.wait()
    assert sent() == [("fired", "chat")]
    assert len(Alert.objects.get().escalations) == 2, "nothing of the dead worker is kept"
    processes.begin("worker")
    for _ in range(2):
        before = timezone.now()
        measure(5.0)
        app.send_task("alerts.evaluate", queue="metrics-threads")
        wait_until(
            lambda before=before: Evaluation.objects.get().at > before, "an evaluation", within_s=WITHIN_S
        )
    assert sent() == [("fired", "chat"), ("escalated", "pager")]
    assert len(Alert.objects.get().escalations) == 1
