"""A real Prometheus reads every process, and a generated rule reaches a receiver of Alertmanager."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
import yaml
from django.utils import timezone

from controlplane.alerts.models import Evaluation
from controlplane.celery import app
from controlplane.embedded.children import free_port, spawn, stop
from controlplane.metric_catalogue.every import EVERY
from controlplane.metric_catalogue.metric import GATEWAY, POD, WEB, WORKER
from controlplane.monitoring.alertmanager import HOOKS
from controlplane.monitoring.files import FILES
from controlplane.monitoring.grafana import promql_of
from fuseboard import blocking
from fuseboard.integrations import wsgi
from tests.agents.alone import settings_with
from tests.agents.test_opentelemetry import RULES
from tests.controlplane.monitoring.monitoring_tools import run, tool
from tests.controlplane.monitoring.test_worker_metrics import TOKEN, WITHIN_S, worker_of
from tests.controlplane.web_process import database_url
from tests.waiting import wait_until
from tools.demo.processes import Process, Processes

pytestmark = pytest.mark.django_db(transaction=True)
NAMES = (WEB, GATEWAY, WORKER)


class Sink:
    """What Alertmanager sends, by the path of its receiver."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sink.got.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def alerts(self, path: str) -> set[tuple[str, str]]:
        return {
            (alert["labels"]["alertname"], alert["status"])
            for at, message in list(self.got)
            if at == path
            for alert in message["alerts"]
        }

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


@pytest.fixture
def processes(production: str, limits: Any, tmp_path: Path) -> Iterator[Processes]:
    tool("prometheus")
    processes = Processes(tmp_path / "logs")
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "FUSEBOARD_DATA_DIR": str(tmp_path),
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_LOG_LEVEL": "WARNING",
        "FUSEBOARD_METRICS_TOKEN": "the token of the scraper",
    }
    for name in (WEB, GATEWAY):
        arguments = ["manage.py", name, "--exactly", "--port", "{port}"]
        processes.add(Process(name, arguments, environment, health="/readyz"))
    worker = worker_of("threads", tmp_path)
    worker.health, worker.port_variable = "/healthz", "FUSEBOARD_WORKER_METRICS_PORT"
    processes.add(worker)
    try:
        processes.begin(*NAMES)
        processes.wait_until_ready(NAMES)
        yield processes
    finally:
        processes.stop(*NAMES)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[str]:
    """The metrics of an agent, as a service with WSGI mounts them. It has decided one request."""
    folder = tmp_path / "pod"
    folder.mkdir()
    agent = blocking.Agent(settings=settings_with(folder, RULES))
    agent.admit_request("acme")
    with make_server("127.0.0.1", 0, wsgi.metrics(agent), handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            agent.stop()


@pytest.fixture
def prometheus(processes: Processes, pod: str, sink: Sink, tmp_path: Path) -> Iterator[str]:
    """The generated files, with the ports of this test and times of seconds."""
    here, port, alertmanager = tmp_path / "monitoring", free_port(), free_port()
    here.mkdir()
    rules = yaml.safe_load(FILES["docs/monitoring/rules.yml"]())
    for rule in rules["groups"][0]["rules"]:
        if "for" in rule:
            rule["for"] = "1s"
    (here / "rules.yml").write_text(yaml.safe_dump(rules))
    config = yaml.safe_load(FILES["docs/monitoring/prometheus.example.yml"]())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager}"]
    targets = {name: f"127.0.0.1:{processes.by_name[name].port}" for name in NAMES} | {POD: pod}
    for scraped, (name, target) in zip(config["scrape_configs"], targets.items(), strict=True):
        assert scraped["job_name"] == f"fuseboard-{name}"
        scraped["static_configs"][0]["targets"] = [target]
    (here / "prometheus.yml").write_text(yaml.safe_dump(config))
    (here / "metrics_token").write_text("the token of the scraper")
    routes = yaml.safe_load(FILES["docs/monitoring/alertmanager.example.yml"]().replace(HOOKS, sink.url))
    for route in (routes["route"], *routes["route"]["routes"]):
        route |= {"group_wait": "0s", "group_interval": "1s"}
    (here / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    with (here / "log").open("wb") as log:
        commands = (
            [
                tool("prometheus"),
                f"--config.file={here / 'prometheus.yml'}",
                f"--storage.tsdb.path={here / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            [
                tool("prometheus-alertmanager"),
                f"--config.file={here / 'alertmanager.yml'}",
                f"--storage.path={here / 'alerts'}",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
            ],
        )
        started = [spawn(command, log=log) for command in commands]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            for process in started:
                stop(process)


def promtool_accepts_metrics_of(url: str) -> None:
    answer = httpx.get(f"{url}/metrics", headers=TOKEN, timeout=30, trust_env=False)
    assert answer.status_code == 200
    assert len(answer.text.splitlines()) < 5_000
    # Those of Python are not ours: promtool prefers other names for some.
    ours = [line for line in answer.text.splitlines() if "fuseboard_" in line]
    checked = run("promtool", "check", "metrics", input="\n".join(ours) + "\n")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    exported = {line.split()[2] for line in ours if line.startswith("# HELP")}
    assert exported <= {metric.name for metric in EVERY}


def a_cause_hides_what_it_explains(prometheus: str) -> None:
    """A breaker that is open, and was for most of the hour: one alert of Prometheus hides the other."""
    with httpx.Client(trust_env=False, timeout=10) as client:
        found = client.get(f"{prometheus}/api/v1/alertmanagers").json()["data"]["activeAlertmanagers"]
        address = found[0]["url"].removesuffix("/alerts")
        row = Evaluation.objects.get(environment="production")
        row.measured["breakers"]["openai"] = [1, 0.6]
        # Web does not evaluate again in place of beat, which does not run here.
        row.at = timezone.now() + timedelta(hours=1)
        row.save(update_fields=["at", "measured"])

        def hidden_by() -> dict[str, list[str]]:
            alerts = client.get(f"{address}/alerts").json()
            names = {alert["fingerprint"]: alert["labels"]["alertname"] for alert in alerts}
            return {
                alert["labels"]["alertname"]: [names[mark] for mark in alert["status"]["inhibitedBy"]]
                for alert in alerts
                if alert["labels"].get("dependency") == "openai"
            }

        expected = {
            "FuseboardOpenCritical": [],
            "FuseboardOpenShareCritical": ["FuseboardOpenCritical"],
            "FuseboardOpenShareWarning": ["FuseboardOpenShareCritical"],
        }
        wait_until(lambda: hidden_by() == expected, "the cause hides it", within_s=WITHIN_S, every_s=0.2)


# Five processes start, which takes long on a busy machine.
@pytest.mark.timeout(400)
def test_prometheus_reads_every_process_and_a_rule_reaches_its_receiver(
    processes: Processes, pod: str, prometheus: str, sink: Sink
) -> None:
    app.send_task("alerts.evaluate", queue="metrics-threads")
    for url in (f"http://{pod}", *(process.url for process in processes.by_name.values())):
        promtool_accepts_metrics_of(url)

    def ask(query: str) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(
                f"{prometheus}/api/v1/query", params={"query": query}, trust_env=False, timeout=10
            )
        except httpx.TransportError:
            return []
        found: list[dict[str, Any]] = answer.json().get("data", {}).get("result", [])
        return found

    def scraped() -> bool:
        return {row["metric"]["job"] for row in ask("up == 1")} == {
            f"fuseboard-{name}" for name in (*NAMES, POD)
        }

    wait_until(scraped, "all processes are scraped", within_s=WITHIN_S, every_s=0.5)
    wait_until(
        lambda: bool(ask("fuseboard_alerts_evaluated_timestamp_seconds")), within_s=WITHIN_S, every_s=0.5
    )
    [requests] = ask('fuseboard_requests_total{job="fuseboard-pod"}')
    assert (requests["metric"]["server"], requests["value"][1]) == ("shop-1", "1")
    assert ask('fuseboard_tasks_total{task="alerts.evaluate",state="success"}')
    for metric in EVERY:
        if metric.panel is not None:
            query = promql_of(metric, metric.panel)
            answer = httpx.get(
                f"{prometheus}/api/v1/query", params={"query": query}, trust_env=False, timeout=10
            )
            assert answer.json()["status"] == "success", query
    wait_until(lambda: ("Watchdog", "firing") in sink.alerts("/watchdog"), within_s=WITHIN_S, every_s=0.2)
    a_cause_hides_what_it_explains(prometheus)
    # Nobody reads the metrics of a gateway any more.
    processes.kill(GATEWAY)
    away = "FuseboardGatewayAwayCritical"
    wait_until(lambda: (away, "firing") in sink.alerts("/level-2"), within_s=WITHIN_S, every_s=0.2)
    [message] = [
        alert for _, body in sink.got for alert in body["alerts"] if alert["labels"]["alertname"] == away
    ][:1]
    assert message["annotations"]["runbook_url"].endswith("/runbooks/gateway-away")
    assert message["labels"]["severity"] == "critical"
