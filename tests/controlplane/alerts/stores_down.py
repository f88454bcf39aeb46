"""Real processes and stores that tests kill, and a receiver that counts messages by their id."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import json

from controlplane.alerts.delivery.signing import secret_of
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.valkey import Valkey
from fuseboard.contract.sync import SYNC_PATH, Counters
from fuseboard.contract.words import Mode
from tests import migrated
from tests.controlplane.alerts.delivery.test_webhook_signing import accepts
from tests.controlplane.gateway.manual_gateway import TOKEN, beat
from tests.controlplane.gateway.test_gateway_process import SEED, manage

PROJECT = Path(__file__).resolve().parents[3]

RECEIVER = """
from controlplane.alerts.models import Receiver
Receiver.objects.create(environment="production", name="pager", url="{url}")
"""


class Sink:
    """A receiver. ``got`` has its messages, repetitions included."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        #: Answers 503 until it is set.
        self.open = threading.Event()
        self.open.set()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                sink.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(204 if sink.open.is_set() else 503)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def counts(self) -> Counter[tuple[str, str]]:
        """Different messages by kind and alert: a repetition has the id of the first."""
        found = {headers["webhook-id"]: json.decode(body) for headers, body in list(self.got)}
        return Counter((one["type"].removeprefix("alert."), one["data"]["key"]) for one in found.values())

    def all_signed(self, receiver: int = 1) -> bool:
        return all(accepts(secret_of(receiver, 1), headers, body) for headers, body in self.got)

    def first(self, key: str) -> dict[str, Any]:
        """The first message about an alert."""
        documents = [json.decode(body) for _, body in self.got]
        return next(one["data"] for one in documents if one["data"]["key"] == key)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Installation:
    """Postgres, two Valkeys, gateways, and a worker with its beat."""

    def __init__(self, folder: Path, sink: Sink) -> None:
        self.folder = folder
        for name in ("postgres", "limits", "broker"):
            (folder / name).mkdir()
        migrated.copy_into(folder / "postgres")
        self.postgres = Postgres(folder / "postgres", durable=False)
        self.limits, self.broker = Valkey(folder / "limits"), Valkey(folder / "broker")
        for store in (self.postgres, self.limits, self.broker):
            store.start()
        self.variables = os.environ | {
            "DATABASE_URL": self.postgres.url,
            "FUSEBOARD_REDIS_URL": self.limits.url,
            "FUSEBOARD_BROKER_URL": self.broker.url,
            "FUSEBOARD_DATA_DIR": str(folder),
            "FUSEBOARD_BEAT_MS": "500",
            "FUSEBOARD_ONCALL_AFTER_S": "10",
            "FUSEBOARD_WEBHOOK_NETWORKS": "127.0.0.0/8",
            "FUSEBOARD_PLAIN_HTTP": "1",
        }
        manage(self.variables, "shell", "--verbosity", "0", "-c", SEED + RECEIVER.format(url=sink.url))
        self.worker: subprocess.Popen[bytes] | None = None
        self.gateways: dict[int, subprocess.Popen[str]] = {}
        self._sequence = 0

    def begin_worker(self) -> None:
        celery = [sys.executable, "-m", "celery", "-A", "controlplane", "worker", "--beat"]
        alone = ["--pool", "threads", "--concurrency", "2", "--without-gossip", "--without-mingle"]
        schedule = ["--schedule", str(self.folder / "schedule")]
        with (self.folder / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [*celery, *alone, *schedule],
                cwd=PROJECT,
                env=self.variables,
                stdout=log,
                stderr=log,
                # Beat is a process of its own, which outlives a worker that is killed.
                start_new_session=True,
            )

    def begin_gateway(self, port: int = 0, **variables: str) -> int:
        """Its port. One that begins again on its port has its folder again."""
        with (self.folder / "gateway.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "gateway", "--port", str(port)],
                cwd=PROJECT,
                env=self.variables | variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        self.gateways[int(found[1])] = process
        return int(found[1])

    def kill_gateway(self, port: int) -> None:
        process = self.gateways.pop(port)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def kill_worker(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def kill(self, name: str) -> None:
        if name == "worker":
            self.kill_worker()
        else:
            getattr(self, name).stop()

    def sync(self, port: int, mode: Mode, *names: str) -> None:
        """Pods report to a gateway, which may not answer yet."""
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=5) as client:
            for name in names:
                self._sequence += 1
                body = beat(
                    name,
                    up_ms=60_000,
                    counters=Counters(requests=self._sequence),
                    mode=mode,
                    mode_for_ms=1_000,
                )
                client.post(SYNC_PATH, content=msgspec.json.encode(body)).raise_for_status()

    def close(self) -> None:
        self.kill_worker()
        for port in list(self.gateways):
            self.kill_gateway(port)
        for store in (self.broker, self.limits, self.postgres):
            store.stop()
