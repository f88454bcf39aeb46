"""Alerts of level 3 while stores and processes are killed in several orders: sent once, resolved once.

A gateway sends after 10 s without an evaluation here, and alerts must last 10 s and stay away 30 s.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from controlplane.embedded.children import free_port
from fuseboard.contract.words import Mode
from tests.controlplane.alerts.stores_down import Installation, Sink
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

PODS = ("pod-1", "pod-2", "pod-3")
#: Only a failure takes so long, also while a busy machine starts all processes.
STARTED_S, SPOKEN_S, RESOLVED_S = 180, 180, 210


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


@pytest.fixture
def installed(tmp_path: Path, sink: Sink) -> Iterator[Installation]:
    installed = Installation(tmp_path, sink)
    yield installed
    installed.close()


@contextmanager
def reporting(installed: Installation, ports: list[int]) -> Iterator[dict[str, Mode]]:
    """Pods that send heartbeats all the time, in a mode that the test sets. Every gateway has answered once:
    without its configuration it answers 503, and knows no pod.
    """
    told, answered, ended = {"mode": Mode.SHARED}, set[int](), threading.Event()

    def run() -> None:
        while not ended.wait(0.4):
            for number, port in enumerate(list(ports)):
                try:
                    installed.sync(port, told["mode"], *(f"{pod}-{number}" for pod in PODS))
                except httpx.HTTPError:
                    # A gateway that is killed, or has no configuration yet.
                    continue
                answered.add(port)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: answered >= set(ports), "answered heartbeats", within_s=STARTED_S)
        yield told
    finally:
        ended.set()
        thread.join()


def evaluated(installed: Installation) -> bool:
    with psycopg.connect(installed.postgres.url) as connection:
        query = "SELECT count(*) FROM alerts_evaluation WHERE at > now() - interval '5 s'"
        return connection.execute(query).fetchone() == (1,)


def rows(installed: Installation, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(installed.postgres.url) as connection:
        return connection.execute(query).fetchall()


def without_worker(sink: Sink) -> Counter[tuple[str, str]]:
    """On a busy machine, the worker can need longer to start than it may be away: that is another alert."""
    counts = sink.counts()
    assert max(counts.values()) == 1
    return Counter({one: count for one, count in counts.items() if one[1] != "worker-away"})


@pytest.mark.parametrize(
    "order",
    [
        # A minute. The checkpoint ``level-3`` of the demo also begins with the stores.
        pytest.param(("limits", "postgres", "broker", "worker"), marks=pytest.mark.slow),
        ("worker", "broker", "postgres", "limits"),
    ],
    ids=lambda order: "-".join(order),
)
def test_each_alert_is_sent_once_and_resolved_once_when_everything_dies(
    installed: Installation, sink: Sink, order: tuple[str, ...]
) -> None:
    installed.begin_worker()
    port = installed.begin_gateway()
    with reporting(installed, [port]) as told:
        wait_until(lambda: evaluated(installed), "an evaluation", within_s=STARTED_S)
        wait_until(
            lambda: list(installed.folder.glob("oncall/*/production.plan")), "a plan", within_s=STARTED_S
        )
        for name in order:
            installed.kill(name)
        told["mode"] = Mode.LOCAL
        expected = {("fired", "postgres-down"): 1, ("fired", "redis-down"): 1}
        wait_until(lambda: sink.counts() >= Counter(expected), "both alerts", within_s=SPOKEN_S)
        assert without_worker(sink) == expected
        first = sink.first("redis-down")
        assert (first["level"], first["sent_by"], first["runbook"]) == (3, "gateway", "redis-unreachable")
        assert "3 of 3 pods decide locally" in first["detail"]
        # A gateway that dies has its journal: it repeats nothing.
        installed.kill_gateway(port)
        assert installed.begin_gateway(port) == port
        for store in (installed.postgres, installed.broker, installed.limits):
            store.start()
        told["mode"] = Mode.SHARED
        installed.begin_worker()
        expected |= {("resolved", "postgres-down"): 1, ("resolved", "redis-down"): 1}
        wait_until(lambda: sink.counts() >= Counter(expected), "both ends", within_s=RESOLVED_S)
    assert without_worker(sink) == expected
    assert sink.all_signed()
    # The worker notes a message only after the receiver, which counts it, has answered.
    unsent = "SELECT count(*) FROM alerts_delivery WHERE state <> 'sent'"
    wait_until(lambda: rows(installed, unsent) == [(0,)], "each message noted as sent")
    assert {one.stat().st_mode & 0o777 for one in installed.folder.glob("oncall/*/*")} == {0o600}
    secret = sink.url.encode()
    assert not any(secret in one.read_bytes() for one in installed.folder.glob("oncall/*/*"))


def test_a_worker_that_is_away_is_reported_once_by_two_gateways(installed: Installation, sink: Sink) -> None:
    """Postgres and Redis are up: the gateways agree in Redis, also when the one that sent dies."""
    installed.begin_worker()
    ports = [installed.begin_gateway(), installed.begin_gateway()]
    with reporting(installed, ports):
        wait_until(lambda: evaluated(installed), "an evaluation", within_s=STARTED_S)
        sink.open.clear()
        installed.kill("worker")
        wait_until(lambda: sink.got, "an attempt", within_s=SPOKEN_S)
        sink.open.set()
        handed = "SELECT count(*) FROM alerts_alert WHERE key = 'worker-away' AND state = 'firing'"
        wait_until(lambda: rows(installed, handed) == [(1,)], "the alert in Postgres", within_s=STARTED_S)
        assert sink.counts() == {("fired", "worker-away"): 1}
        assert len(sink.got) >= 2, "it was sent again, with the same id"
        installed.kill_gateway(ports.pop())
        installed.begin_worker()
        wait_until(lambda: ("resolved", "worker-away") in sink.counts(), "its end", within_s=RESOLVED_S)
    assert sink.counts() == {("fired", "worker-away"): 1, ("resolved", "worker-away"): 1}
    assert sink.all_signed()


def test_gateways_that_share_no_store_ask_each_other(installed: Installation, sink: Sink) -> None:
    installed.begin_worker()
    ports = [free_port(), free_port()]
    urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    for port in ports:
        assert installed.begin_gateway(port, FUSEBOARD_GATEWAY_URL=urls) == port
    with reporting(installed, ports) as told:
        wait_until(lambda: evaluated(installed), "an evaluation", within_s=STARTED_S)
        two = "SELECT count(*) FROM fleet_figures WHERE at > now() - interval '5 s'"
        wait_until(lambda: rows(installed, two) == [(2,)], "both gateways", within_s=STARTED_S)
        plans = "oncall/*/production.plan"
        wait_until(lambda: len(list(installed.folder.glob(plans))) == 2, "two plans", within_s=STARTED_S)
        for name in ("postgres", "limits", "broker", "worker"):
            installed.kill(name)
        told["mode"] = Mode.LOCAL
        expected = {("fired", "postgres-down"): 1, ("fired", "redis-down"): 1}
        wait_until(lambda: sink.counts() >= Counter(expected), "both alerts", within_s=SPOKEN_S)
        journals = "oncall/*/journal.json"
        wait_until(
            lambda: len(list(installed.folder.glob(journals))) == 2, "both know of it", within_s=STARTED_S
        )
    assert without_worker(sink) == expected
    assert len(sink.got) == 2
