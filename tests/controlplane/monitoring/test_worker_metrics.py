"""What tasks count can be read from a real worker, by those who may read it."""

import os
import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from controlplane import env
from controlplane.accounts.tokens import create_api_token
from controlplane.celery import app
from controlplane.worker_metrics import SILENCE_S, MetricsServer
from fuseboard.contract import keys
from tests.controlplane.web_process import database_url
from tests.people import SEED
from tests.waiting import wait_until
from tools.demo.processes import Process, Processes

TOKEN = {"Authorization": "Bearer the token of the scraper"}
REPAIRS = ("fuseboard_reconcile_repairs_total", "policy")
#: A worker starts within this time on a busy machine.
WITHIN_S = 60.0


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "logs")
    yield processes
    processes.stop("worker")


def worker_of(pool: str, folder: Path, **variables: str) -> Process:
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "FUSEBOARD_DATA_DIR": str(folder),
        "FUSEBOARD_METRICS_TOKEN": "the token of the scraper",
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_LOG_LEVEL": "INFO",
        **variables,
    }
    celery = ["-m", "celery", "-A", "controlplane", "worker", "--pool", pool, "--concurrency", "2"]
    alone = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-Q", f"metrics-{pool}"]
    return Process("worker", [*celery, *alone], environment)


def scrape(url: str) -> dict[tuple[str, ...], float]:
    answer = httpx.get(f"{url}/metrics", headers=TOKEN, timeout=10, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_what_a_task_counts_is_read_from_the_worker(
    production: str, processes: Processes, limits: Any, tmp_path: Path, pool: str
) -> None:
    (tmp_path / "counters").mkdir()
    variables = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "counters")} if pool == "prefork" else {}
    worker = worker_of(pool, tmp_path, **variables)
    worker.health, worker.port_variable = "/healthz", "FUSEBOARD_WORKER_METRICS_PORT"
    processes.add(worker)
    processes.begin("worker")
    processes.wait_until_ready(["worker"])
    assert scrape(worker.url).get(REPAIRS, 0) == 0
    limits.delete(keys.config_head("production"))  # as if Redis had lost it
    app.send_task("publishing.reconcile", queue=f"metrics-{pool}")
    counted = (REPAIRS, ("fuseboard_task_seconds_count", "publishing.reconcile"))
    for name in counted:
        wait_until(
            lambda name=name: scrape(worker.url).get(name) == 1, name[0], within_s=WITHIN_S, every_s=0.05
        )
    assert scrape(worker.url)["fuseboard_tasks_total", "publishing.reconcile", "success"] == 1
    if pool == "threads":
        answers_scrapers_alone(worker.url)
    assert worker.popen is not None
    worker.popen.terminate()
    assert worker.popen.wait(20) == 0


def answers_scrapers_alone(url: str) -> None:
    with httpx.Client(trust_env=False, timeout=10) as client:
        for sent in ("", "Bearer", "Bearer wrong", "Basic the token of the scraper", "Bearer fb_x_y"):
            answer = client.get(f"{url}/metrics", headers={"Authorization": sent})
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert client.get(f"{url}/other", headers=TOKEN).status_code == 404
        assert client.post(f"{url}/metrics", headers=TOKEN).status_code == 404
        text = create_api_token(
            name="prometheus",
            role="viewer",
            expires_at=timezone.now() + timedelta(days=1),
            reason="for a test",
            actor=SEED,
        )
        assert client.get(f"{url}/metrics", headers={"Authorization": f"Bearer {text}"}).status_code == 200


def test_tasks_run_although_the_port_is_in_use(
    production: str, processes: Processes, limits: Any, tmp_path: Path
) -> None:
    limits.delete(keys.config_head("production"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        processes.add(worker_of("solo", tmp_path, FUSEBOARD_WORKER_METRICS_PORT=port))
        processes.begin("worker")
        app.send_task("publishing.reconcile", queue="metrics-solo")
        wait_until(lambda: limits.exists(keys.config_head("production")) == 1, within_s=WITHIN_S)
    assert "metrics.not_served" in (tmp_path / "logs" / "worker.log").read_text()


def test_a_worker_answers_over_tls_and_a_silent_client_blocks_no_other(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = {"ssl_certfile": str(tmp_path / "cert.pem"), "ssl_keyfile": str(tmp_path / "key.pem")}
    certificate.cert_chain_pems[0].write_to_path(files["ssl_certfile"])
    certificate.private_key_pem.write_to_path(files["ssl_keyfile"])
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    server = MetricsServer("127.0.0.1", 0, files)
    try:
        with (
            socket.create_connection(("127.0.0.1", server.port)),  # never begins a handshake
            httpx.Client(verify=trusted, trust_env=False, timeout=SILENCE_S / 2) as client,
        ):
            assert client.get(f"https://127.0.0.1:{server.port}/healthz").text == "ok\n"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("", None),
        ("9101", ("127.0.0.1", 9101)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9101", ("0.0.0.0", 9101)),  # noqa: S104 - parsed, not bound
        ("[::1]:9101", ("::1", 9101)),
    ],
)
def test_the_address_is_a_port_or_a_host_and_a_port(
    monkeypatch: pytest.MonkeyPatch, value: str, address: tuple[str, int] | None
) -> None:
    monkeypatch.setenv("FUSEBOARD_WORKER_METRICS_PORT", value)
    assert env.listen_address("FUSEBOARD_WORKER_METRICS_PORT") == address


@pytest.mark.parametrize("value", ["99999", "localhost", ":9101", "http://localhost:9101", "91 01", "-1"])
def test_another_address_is_refused_with_what_is_valid(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FUSEBOARD_WORKER_METRICS_PORT", value)
    with pytest.raises(ImproperlyConfigured, match=r"such as 9101, or host:port, such as 0\.0\.0\.0:9101"):
        env.listen_address("FUSEBOARD_WORKER_METRICS_PORT")
