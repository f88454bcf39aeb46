"""News of an alert from a real worker to a real HTTP receiver, also when the worker is killed in between."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from msgspec import json

from controlplane.alerts.delivery.queue import enqueue
from controlplane.alerts.delivery.signing import secret_of
from controlplane.alerts.lifecycle import AlertState, News
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Receiver
from controlplane.celery import app
from controlplane.demo.processes import Processes
from tests.controlplane.test_webhook_signing import accepts
from tests.controlplane.test_worker_metrics import WITHIN_S, worker_of
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Sink:
    """A receiver that does not answer its first request."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.closing = threading.Event()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                sink.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                if len(sink.got) == 1:
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
    [delivery] = enqueue(alert, News.FIRED)
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
