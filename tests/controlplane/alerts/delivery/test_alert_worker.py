"""News of an alert from a real worker to a real HTTP receiver, also when the worker is killed in between."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone
from msgspec import json

from controlplane.alerts.delivery.queue import enqueue
from controlplane.alerts.delivery.signing import secret_of
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Receiver
from controlplane.celery import app
from tests.controlplane.alerts.delivery.test_webhook_signing import accepts
from tests.controlplane.alerts.test_alert_evaluator import evaluate, let_pass, measure
from tests.controlplane.monitoring.test_worker_metrics import WITHIN_S, worker_of
from tests.waiting import wait_until
from tools.demo.processes import Processes

#: Longer than an alert waits before it fires or ends, and than two starts of a worker on a busy machine: time
#: in which nobody evaluates counts neither for an alert nor against it.
LONG_S = 3600.0

pytestmark = pytest.mark.django_db(transaction=True)


class Sink:
    """A receiver that does not answer its first requests."""

    def __init__(self, unanswered: int = 1) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.closing = threading.Event()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                sink.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                if len(sink.got) <= unanswered:
                    sink.closing.wait(WITHIN_S)
                    return
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "logs")
    yield processes
    processes.stop("worker")


@pytest.mark.parametrize("scheme", ["http", "mmost"])
def test_a_worker_that_is_killed_while_it_sends_loses_no_news(
    production: str, processes: Processes, limits: Any, sink: Sink, tmp_path: Path, settings: Any, scheme: str
) -> None:
    url = sink.url.replace("http://", f"{scheme}://")
    receiver = Receiver.objects.create(environment=production, name="pager", url=url)
    now = timezone.now()
    alert = Alert.objects.create(
        environment=production,
        key="open:payments-api",
        level=2,
        severity="critical",
        worst="critical",
        state=AlertState.FIRING,
        true_since=now,
        level_since=now,
        fired_at=now,
        text="payments-api is open",
        subject_kind="breaker",
    )
    [delivery] = enqueue(alert, AlertEvent.FIRED)
    variables = {
        "FUSEBOARD_WEBHOOK_NETWORKS": "127.0.0.0/8",
        "FUSEBOARD_SECRET_KEY": settings.SECRET_KEY,
    }
    worker = processes.add(worker_of("threads", tmp_path, **variables))
    processes.begin("worker")
    app.send_task("alerts.deliver", queue="metrics-threads")
    wait_until(lambda: sink.got, "the first attempt", within_s=WITHIN_S)
    assert worker.popen is not None
    worker.popen.kill()
    worker.popen.wait()
    delivery.refresh_from_db()
    assert delivery.state == DeliveryState.SENDING, "nothing was noted of the attempt"
    # As if the lease of the dead process had ended.
    Delivery.objects.update(lease_until=timezone.now())
    processes.begin("worker")
    app.send_task("alerts.deliver", queue="metrics-threads")
    wait_until(
        lambda: Delivery.objects.get().state == DeliveryState.SENT, "the second attempt", within_s=WITHIN_S
    )
    (first, _), (second, body) = sink.got
    assert Delivery.objects.get().attempts == 2
    if scheme == "mmost":
        text = json.decode(body)["text"]
        assert "payments-api is open" in text
        assert "Repeated: an earlier attempt may have arrived." in text
        return
    assert first["webhook-id"] == second["webhook-id"] == str(delivery.pk)
    assert accepts(secret_of(receiver.pk, 1), second, body)
    assert json.decode(body)["data"]["text"] == "payments-api is open"


def kill(processes: Processes) -> None:
    worker = processes.by_name["worker"].popen
    assert worker is not None
    worker.kill()
    worker.wait()


def start(processes: Processes) -> None:
    """Begin the worker and wait until it answers: its start may take longer than figures stay fresh."""
    processes.begin("worker")
    processes.wait_until_ready(["worker"])


def run(task: str) -> None:
    app.send_task(f"alerts.{task}", queue="metrics-threads")


def states() -> list[str]:
    return list(Alert.objects.order_by("pk").values_list("state", flat=True))


@contextmanager
def no_evaluation_ends() -> Iterator[None]:
    """One that begins meanwhile has done all its work, and waits before its commit."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE alerts_evaluation IN EXCLUSIVE MODE")
        yield


def evaluation_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'alerts_evaluation'::regclass"
        )
        return bool(cursor.fetchone() == (1,))


def test_a_worker_that_is_killed_at_every_step_sends_each_message_once(
    production: str, processes: Processes, limits: Any, tmp_path: Path, settings: Any
) -> None:
    """In the evaluation that fires, between it and the delivery, and in the evaluation that resolves."""
    sink = Sink(unanswered=0)
    Receiver.objects.create(environment=production, name="pager", url=sink.url, least_level=1)
    variables = {"FUSEBOARD_WEBHOOK_NETWORKS": "127.0.0.0/8", "FUSEBOARD_SECRET_KEY": settings.SECRET_KEY}
    worker = worker_of("threads", tmp_path, **variables)
    worker.health, worker.port_variable = "/healthz", "FUSEBOARD_WORKER_METRICS_PORT"
    processes.add(worker)
    try:
        measure(5.0)
        evaluate()
        let_pass(LONG_S)
        start(processes)
        with no_evaluation_ends():
            measure(5.0)
            run("evaluate")
            wait_until(evaluation_waits, "the evaluation that fires", within_s=WITHIN_S)
            kill(processes)
        assert (states(), Delivery.objects.count()) == (["pending"], 0)
        start(processes)
        measure(5.0)
        run("evaluate")
        wait_until(lambda: states() == ["firing"], "it fires", within_s=WITHIN_S)
        assert sink.got == []
        kill(processes)
        start(processes)
        run("deliver")
        wait_until(lambda: Delivery.objects.get().state == DeliveryState.SENT, within_s=WITHIN_S)
        measure(0.0)
        run("evaluate")
        wait_until(lambda: states() == ["recovering"], "it recovers", within_s=WITHIN_S)
        let_pass(LONG_S)
        with no_evaluation_ends():
            measure(0.0)
            run("evaluate")
            wait_until(evaluation_waits, "the evaluation that resolves", within_s=WITHIN_S)
            kill(processes)
        assert (states(), Delivery.objects.count()) == (["recovering"], 1)
        start(processes)
        measure(0.0)
        run("evaluate")
        wait_until(lambda: states() == ["resolved"], "it is resolved", within_s=WITHIN_S)
        run("deliver")
        wait_until(lambda: len(sink.got) == 2, "the second message", within_s=WITHIN_S)
        wait_until(lambda: not Delivery.objects.exclude(state=DeliveryState.SENT).exists(), within_s=WITHIN_S)
    finally:
        sink.close()
    assert [json.decode(body)["type"] for _, body in sink.got] == ["alert.fired", "alert.resolved"]
