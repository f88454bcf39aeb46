"""A receiver that hangs and a broker that is frozen delay neither an edit nor a decision."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone

from controlplane.alerts.delivery.queue import enqueue
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Receiver
from controlplane.audit.models import Entry
from controlplane.celery import app
from controlplane.embedded.valkey import Valkey
from controlplane.policies.models import Environment
from fuseboard import AgentSettings, blocking
from fuseboard.contract.words import Mode
from tests.controlplane.alerts.delivery.sinks import Chat, chat
from tests.controlplane.calling import token_of
from tests.controlplane.monitoring.test_worker_metrics import WITHIN_S, worker_of
from tests.controlplane.web_process import web_running
from tests.waiting import wait_until
from tools.demo.processes import Processes

pytestmark = pytest.mark.django_db(transaction=True)


class Client:
    """A program that edits over HTTP. Its requests fail after 20 s; a receiver would hang for longer."""

    def __init__(self, web: str) -> None:
        self._client = httpx.Client(
            base_url=f"{web}/api/v1/production",
            headers={"Authorization": f"Bearer {token_of('admin')}"},
            timeout=20,
            trust_env=False,
        )

    def edit(self, limit: int) -> int:
        """The revision of a changed quota."""
        path = "/tenants/acme/quotas/requests"
        body = {"limit": limit, "window_s": 60, "reason": f"limit {limit}"}
        version = self._client.get("/tenants/acme").raise_for_status().json()["version"]
        answer = self._client.put(path, json={**body, "expected_version": version})
        assert answer.is_success, answer.text
        return int(answer.json()["revision"])

    def post(self, path: str, body: dict[str, Any] | None = None) -> int:
        return self._client.post(path, json=body).status_code

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def sink() -> Iterator[Chat]:
    """It answers nothing until the end of the test."""
    with chat(None, None) as sink:
        yield sink


@pytest.fixture
def processes(production: str, valkey: Valkey, tmp_path: Path, settings: Any) -> Iterator[Processes]:
    """Web and a worker, with a broker of their own."""
    variables = {
        "FUSEBOARD_BROKER_URL": valkey.url,
        "FUSEBOARD_WEBHOOK_NETWORKS": "127.0.0.0/8",
        "FUSEBOARD_SECRET_KEY": settings.SECRET_KEY,
    }
    with web_running(tmp_path, **variables) as processes:
        processes.add(worker_of("threads", tmp_path, **variables))
        processes.begin("worker")
        try:
            yield processes
        finally:
            processes.stop("worker")


@pytest.fixture
def pod(production: str, redis_url: str, tmp_path: Path) -> Iterator[blocking.Agent]:
    with blocking.Agent(
        settings=AgentSettings(redis_url=redis_url, server="web-1", state_dir=tmp_path)
    ) as pod:
        yield pod


def firing(receiver: Receiver) -> Alert:
    now = timezone.now()
    alert = Alert.objects.create(
        environment=receiver.environment,
        key="open:openai",
        level=2,
        severity="critical",
        worst="critical",
        state=AlertState.FIRING,
        true_since=now,
        level_since=now,
        fired_at=now,
        text="openai is open",
        subject_kind="breaker",
        subject_name="openai",
    )
    enqueue(alert, AlertEvent.FIRED)
    return alert


@contextmanager
def frozen(valkey: Valkey) -> Iterator[None]:
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def test_edits_and_decisions_end_while_a_receiver_hangs_and_the_broker_is_frozen(
    production: str, processes: Processes, pod: blocking.Agent, valkey: Valkey, sink: Chat
) -> None:
    receiver = Receiver.objects.create(
        environment=production, name="pager", url=f"http://127.0.0.1:{sink.port}/hook"
    )
    client = Client(processes.by_name["web"].url)

    def revision_of_the_pod() -> int:
        decision = pod.admit_request("acme")
        assert (decision.allowed, decision.mode) == (True, Mode.SHARED)
        return decision.revision

    try:
        first = client.edit(100_000)
        wait_until(lambda: revision_of_the_pod() == first, "the edit at the pod", every_s=0.1)
        alert = firing(receiver)
        with app.connection_for_write(valkey.url) as connection:
            app.send_task("alerts.deliver", queue="metrics-threads", connection=connection)
        wait_until(lambda: sink.got, "the message that is not answered", within_s=WITHIN_S)
        with frozen(valkey):
            revision = client.edit(200_000)
            wait_until(lambda: revision_of_the_pod() == revision, "the edit at the pod", every_s=0.1)
            # What is itself about the alert and about the receiver does not connect to the receiver, too.
            assert client.post(f"/alerts/{alert.pk}/acknowledge", {"note": "I am on it"}) == 200
            assert client.post("/receivers/pager/test") == 202
            # All that ended while the receiver was still hanging, and the worker with it.
            assert (len(sink.got), sink.closing.is_set()) == (1, False)
            [sent] = Delivery.objects.filter(alert=alert)
            assert (sent.state, sent.attempts) == (DeliveryState.SENDING, 1)
        assert revision == first + 1 == Environment.objects.get().revision
        reasons = Entry.objects.order_by("id").values_list("reason", flat=True)
        assert [reason for reason in reasons if reason.startswith("limit")] == [
            "limit 100000",
            "limit 200000",
        ]
        assert Delivery.objects.filter(kind="test", state=DeliveryState.WAITING).count() == 1
    finally:
        client.close()
