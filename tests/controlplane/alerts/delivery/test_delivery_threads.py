"""Receivers that hang keep neither another receiver nor the task of a worker waiting."""

import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from controlplane.alerts import tasks
from controlplane.alerts.delivery import http
from controlplane.alerts.delivery.claim import MAX_AT_ONCE, send_waiting
from controlplane.alerts.delivery.http import Answer, NotDelivered, post
from controlplane.alerts.delivery.queue import enqueue
from controlplane.alerts.delivery.threads import DeliveryThreads
from controlplane.alerts.lifecycle import AlertEvent
from controlplane.alerts.models import Delivery, DeliveryState
from tests.controlplane.alerts.delivery.test_alert_deliveries import alert, receiver
from tests.waiting import wait_until

WITHIN_S = 30


class Hanging:
    """Receivers whose name begins with ``hangs`` answer when the test lets them."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.asked: list[str] = []

    def __call__(self, url: str, *_: Any, **__: Any) -> Answer:
        self.asked.append(url)
        if "hangs" in url and not self.released.wait(WITHIN_S):
            raise NotDelivered("the test ended")
        return Answer(200, "", 0.0)


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "delivery"]


@pytest.mark.django_db(transaction=True)
def test_a_third_receiver_gets_its_message_while_two_hang(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging()
    pool = DeliveryThreads(MAX_AT_ONCE, lambda: send_waiting(send=hanging))
    monkeypatch.setattr(tasks, "DELIVERY_THREADS", pool)
    for name in ("hangs-1", "hangs-2", "pager"):
        receiver(name)
    enqueue(alert(), AlertEvent.FIRED)

    def sent() -> set[str]:
        return set(Delivery.objects.filter(state=DeliveryState.SENT).values_list("receiver__name", flat=True))

    def pager_has_it_while_two_hang() -> bool:
        # As beat asks each second. The task itself waits for no receiver.
        tasks.deliver()
        return sent() == {"pager"} and sum("hangs" in url for url in hanging.asked) == 2

    try:
        wait_until(pager_has_it_while_two_hang, within_s=WITHIN_S)
    finally:
        hanging.released.set()
    wait_until(lambda: len(sent()) == 3 and not threads(), within_s=WITHIN_S)
    assert not tasks.something_waits()


def test_threads_are_bounded_and_an_error_ends_only_its_own() -> None:
    release = threading.Event()

    def fails() -> None:
        release.wait(WITHIN_S)
        raise OSError("no connection")

    pool = DeliveryThreads(2, fails)
    try:
        assert [pool.begin() for _ in range(3)] == [True, True, False]
    finally:
        release.set()
    wait_until(lambda: not threads(), within_s=WITHIN_S)
    assert pool.begin(), "both are free again"
    wait_until(lambda: not threads(), within_s=WITHIN_S)


#: The program of a worker that ends while many messages wait.
_ENDS = """
import atexit, os, threading, time
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
import django
django.setup()
from controlplane.alerts.delivery import claim
from controlplane.alerts.delivery.threads import DeliveryThreads
attempts, begun = [], threading.Event()
def attempt(*_):
    attempts.append(1)
    begun.set()
    threading.main_thread().join()
    time.sleep(0.1)
claim._claim, claim._fired_again, claim._attempt = object, lambda _: False, attempt
pool = DeliveryThreads(1, claim.send_waiting)
assert pool.begin()
begun.wait()
atexit.register(lambda: print(len(attempts)))
"""


def test_a_worker_that_ends_waits_for_the_present_attempt_only() -> None:
    # A busy machine takes long to start Django.
    done = subprocess.run(
        [sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=100, check=True
    )
    assert int(done.stdout) == 1


def test_a_resolver_that_hangs_ends_with_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hangs(*_: Any, **__: Any) -> Any:
        released.wait(WITHIN_S)
        raise socket.gaierror("released")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(http, "CONNECT_S", 0.05)
    try:
        with pytest.raises(NotDelivered, match="was not resolved within"):
            post("https://slow.example.com/hook", b"{}", {})
    finally:
        released.set()
