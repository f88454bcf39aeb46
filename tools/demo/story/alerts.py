"""Alerts reach a receiver: a vendor fails and recovers, and everything that usually sends alerts dies."""

import hmac
import os
import signal
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from django.db import connection
from msgspec import json

from controlplane import embedded
from controlplane.alerts.delivery.receivers import add_receiver, remove_receiver
from controlplane.alerts.models import Receiver
from fuseboard.contract.words import Mode
from tools.demo.scenario import DEPENDENCIES, FLAKY, PODS, STORYTELLER
from tools.demo.seed import DIRECTOR, ENVIRONMENT
from tools.demo.story.chapter import Chapter, CheckFailed

_NAME = "demo-sink"
_REASON = "The demo receives its alerts"
_OPEN = f"open:{FLAKY}"
_LATENCY_MS = next(one for one in DEPENDENCIES if one.name == FLAKY).latency_ms
STORES = ("DATABASE_URL", "FUSEBOARD_BROKER_URL", "FUSEBOARD_REDIS_URL")


class Sink:
    """A receiver in this process. It keeps what has a valid signature, and counts what has not."""

    def __init__(self) -> None:
        self.secret = ""
        self.unsigned = 0
        #: Id of the message -> its body.
        self.messages: dict[str, dict[str, Any]] = {}
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sink.take(dict(self.headers.items()), self.rfile.read(int(self.headers["content-length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """The demo prints what it checks, and no requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        self._thread.start()

    def take(self, headers: dict[str, str], body: bytes) -> None:
        fields = {name.lower(): value for name, value in headers.items()}
        signed = f"{fields['webhook-id']}.{fields['webhook-timestamp']}.".encode() + body
        key = b64decode(self.secret.removeprefix("whsec_"))
        expected = f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode()}"
        if expected in fields["webhook-signature"].split(" "):
            self.messages[fields["webhook-id"]] = json.decode(body)
        else:
            self.unsigned += 1

    def count(self, kind: str, key: str) -> int:
        """Different messages: a repetition has the id of the first."""
        found = Counter((one["type"], one["data"]["key"]) for one in list(self.messages.values()))
        return found[f"alert.{kind}", key]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def _receiving() -> Iterator[Sink]:
    """A receiver of all alerts for people, for as long as the block runs."""
    sink = Sink()
    _remove()
    try:
        _, sink.secret = add_receiver(
            environment=ENVIRONMENT,
            name=_NAME,
            url=sink.url,
            least_level=2,
            least_severity="warning",
            reason=_REASON,
            actor=DIRECTOR,
        )
        yield sink
    finally:
        # Its thread would keep the process alive.
        sink.close()
        _remove()


def _remove() -> None:
    if Receiver.objects.filter(environment=ENVIRONMENT, name=_NAME).exists():
        remove_receiver(environment=ENVIRONMENT, name=_NAME, reason=_REASON, actor=DIRECTOR)


def alert_fires(chapter: Chapter) -> str:
    """The vendor fails: one message with a valid signature."""
    sink = _sink(chapter)
    with chapter.watch(FLAKY, STORYTELLER):
        chapter.demo.switch(FLAKY, failure_percent=100, latency_ms=_LATENCY_MS)
        took_ms = chapter.until("the alert", _received(sink, "fired", _OPEN), within_s=40)
    _check(sink, {("fired", _OPEN): 1, ("resolved", _OPEN): 0})
    return f"{FLAKY} fails: a message with a valid signature after {took_ms / 1000:.1f} s"


def alert_resolves(chapter: Chapter) -> str:
    """The vendor recovers: one more message, when the breaker has stayed closed."""
    sink = _sink(chapter)
    with chapter.watch(FLAKY, STORYTELLER):
        chapter.demo.switch(FLAKY, failure_percent=0, latency_ms=_LATENCY_MS)
        took_ms = chapter.until("its end", _received(sink, "resolved", _OPEN), within_s=120)
    _check(sink, {("fired", _OPEN): 1, ("resolved", _OPEN): 1})
    return (
        f"{FLAKY} recovers: one message after {took_ms / 1000:.0f} s, of which the breaker must stay closed"
        " for 60 s"
    )


def level_3(chapter: Chapter) -> str:
    """Postgres, Redis, queue and worker are killed: a gateway sends two alerts, and each ends once."""
    demo, sink = chapter.demo, _sink(chapter)
    chapter.until("the gateway knows the receiver", lambda: _is_kept(demo.folder), within_s=20)
    demo.processes.kill("worker", "beat")
    for store in STORES:
        os.kill(embedded.look_up(store, folder=demo.folder).server, signal.SIGKILL)
    killed = time.monotonic()
    keys = ("postgres-down", "redis-down")
    try:
        for key in keys:
            chapter.until(f"the alert {key}", _received(sink, "fired", key), within_s=60)
        took_s = time.monotonic() - killed
    finally:
        for store in STORES:
            embedded.revive(store, folder=demo.folder, within_s=30)
        # The connection to the one that was killed.
        connection.close()
        demo.processes.begin("worker", "beat")
        demo.processes.wait_until_ready(["worker"])
    back = time.monotonic()
    for key in keys:
        chapter.until(f"the end of {key}", _received(sink, "resolved", key), within_s=90)
    ended_s = time.monotonic() - back
    _check(sink, {(kind, key): 1 for kind in ("fired", "resolved") for key in keys})
    for pod in PODS:
        # What comes next expects Redis.
        chapter.until(f"{pod} shares limits", _shares(chapter, pod), within_s=30)
    return (
        f"Postgres, Redis, queue, worker and beat killed: the gateway sent {' and '.join(keys)} within"
        f" {took_s:.0f} s, signed; when all were back, the worker ended each once within {ended_s:.0f} s"
    )


def _sink(chapter: Chapter) -> Sink:
    """The receiver of this run, added when it is needed first."""
    if chapter.sink is None:
        chapter.sink = chapter.enter(_receiving())
    sink: Sink = chapter.sink
    return sink


def _shares(chapter: Chapter, pod: str) -> Callable[[], bool]:
    return lambda: chapter.ask(pod, "search", STORYTELLER).mode == Mode.SHARED


def _is_kept(folder: Path) -> bool:
    """Whether a plan on disk is younger than the receiver."""
    added = Receiver.objects.get(environment=ENVIRONMENT, name=_NAME).created_at.timestamp()
    return any(file.stat().st_mtime > added for file in folder.glob(f"oncall/*/{ENVIRONMENT}.plan"))


def _received(sink: Sink, kind: str, key: str) -> Callable[[], bool]:
    return lambda: sink.count(kind, key) > 0


def _check(sink: Sink, expected: dict[tuple[str, str], int]) -> None:
    found = {place: sink.count(*place) for place in expected}
    if found != expected or sink.unsigned:
        raise CheckFailed(f"messages {found}, without a valid signature {sink.unsigned}")
