"""Metrics of a Celery worker for Prometheus: what its tasks count. ``controlplane.celery`` names it.

A worker has no web server, so the counters that tasks raise would never be read. With
FUSEBOARD_WORKER_METRICS_PORT set, the worker process answers ``/metrics`` to the same tokens as web
and gateway do, and ``/healthz`` to anyone. Beat runs no task and needs no port.

With the pools ``threads`` and ``solo`` all tasks count in this process. The pool ``prefork`` runs
them in child processes, whose counters are read from the folder PROMETHEUS_MULTIPROC_DIR.
"""

import os
import socket
import socketserver
import threading
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import structlog
from celery import bootsteps
from celery.signals import task_postrun, task_prerun, worker_process_init
from django.conf import settings
from django.db import connections
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.multiprocess import MultiProcessCollector

from controlplane import tls
from controlplane.accounts.scraping import REFUSAL, Scraper, scraper_of
from controlplane.celery import app
from controlplane.metric_catalogue import processes as process_metrics

TASKS = process_metrics.TASKS.make()
SECONDS = process_metrics.TASK_SECONDS.make()
LAST_SUCCESS = process_metrics.TASK_LAST_SUCCESS.make()
#: A scraper that sends nothing is disconnected after this time.
SILENCE_S = 10

_TEXT = ("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
logger = structlog.get_logger(__name__)


@task_prerun.connect
def _note_start(task: Any, **_: Any) -> None:
    task.request.fuseboard_began = monotonic()


@task_postrun.connect
def _count(task: Any, state: str | None = None, **_: Any) -> None:
    began = getattr(task.request, "fuseboard_began", None)
    TASKS.labels(task.name, (state or "unknown").lower()).inc()
    if state == "SUCCESS":
        LAST_SUCCESS.labels(task.name).set_to_current_time()
    if began is not None:
        SECONDS.labels(task.name).observe(monotonic() - began)


def exposition(scraper: Scraper) -> bytes:
    """Return the metrics of this process, or of all child processes of the pool ``prefork``."""
    if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        return scraper.read(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # untyped in prometheus_client
    return scraper.read(registry)


def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """The WSGI application."""
    path = environ.get("PATH_INFO", "")
    if path == "/healthz":
        start_response("200 OK", [_TEXT])
        return [b"ok\n"]
    if path != "/metrics" or environ["REQUEST_METHOD"] != "GET":
        start_response("404 Not Found", [_TEXT])
        return [b"GET /metrics or /healthz.\n"]
    try:
        scraper = scraper_of(environ.get("HTTP_AUTHORIZATION", ""))
        if scraper is None:
            start_response("401 Unauthorized", [_TEXT, ("WWW-Authenticate", "Bearer")])
            return [REFUSAL.encode()]
    finally:
        connections.close_all()  # each request has a thread, and so a connection
    start_response("200 OK", [_TEXT])
    return [exposition(scraper)]


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        """Requests are not logged, as in the other processes."""


class _Server(ThreadingWSGIServer):
    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Not that of HTTPServer, which looks its own name up: a slow resolver would delay the worker.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class MetricsServer:
    """Answers on threads. Raises ``OSError`` when it cannot listen; 0 lets the system choose a port."""

    def __init__(self, host: str, port: int, certificate: Mapping[str, Any]) -> None:
        self._server = make_server(host, port, answer, _Server, _Handler)
        self.port: int = self._server.server_port
        if certificate:
            context = tls.renewing_context(certificate["ssl_certfile"], certificate["ssl_keyfile"])
            # The handshake runs on the request's thread: a silent client must not block the others.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=self._server.serve_forever, name="worker-metrics", daemon=True)
        self._thread = thread
        thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def close_in_child(self) -> None:
        """A child process inherits the socket but not the thread."""
        self._server.socket.close()


class Metrics(bootsteps.StartStopStep):
    """The part of a worker that listens, from after its pool has started to its end."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self.address: tuple[str, int] | None = settings.WORKER_METRICS_ADDRESS
        self.enabled = self.address is not None
        self.server: MetricsServer | None = None

    def start(self, worker: Any) -> None:
        if self.address is None:
            return
        host, port = self.address
        try:
            self.server = MetricsServer(host, port, tls.uvicorn_options())
        except OSError as error:
            # The tasks matter more than their figures.
            logger.error("metrics.not_served", host=host, port=port, problem=str(error))
            return
        logger.info("metrics.served", host=host, port=self.server.port)
        prefork = "prefork" in str(getattr(worker.pool_cls, "__module__", ""))
        if prefork and not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            do = "use --pool threads, or set PROMETHEUS_MULTIPROC_DIR to an empty folder"
            logger.warning("metrics.incomplete", problem="tasks count in child processes", do=do)
        worker_process_init.connect(self._in_child, weak=False)

    def stop(self, worker: Any) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def terminate(self, worker: Any) -> None:
        self.stop(worker)

    def _in_child(self, **_: Any) -> None:
        if self.server is not None:
            self.server.close_in_child()


app.steps["worker"].add(Metrics)
