"""In a real Alertmanager with the generated file, a cause hides what it explains, and nothing else."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml

from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.state.causes import EXPLAINS
from controlplane.embedded.children import free_port, spawn, stop
from controlplane.monitoring.alertmanager import HOOKS, has_environment
from controlplane.monitoring.files import FILES
from tests.controlplane.monitoring.monitoring_tools import tool
from tests.controlplane.monitoring.test_real_prometheus import Sink
from tests.waiting import wait_until

#: Rule -> severity -> its labels in the generated rules.
LABELS: dict[str, dict[str, dict[str, str]]] = {}
for _rule in yaml.safe_load(FILES["docs/monitoring/rules.yml"]())["groups"][0]["rules"]:
    LABELS.setdefault(_rule["labels"]["rule"], {})[_rule["labels"]["severity"]] = {
        "alertname": _rule["alert"],
        **_rule["labels"],
    }
#: They are about a server or a process, and have no environment.
GLOBAL = {rule for rule in LABELS if not has_environment(rule)} - {"watchdog"}
PAIRS = [
    (cause, effect)
    for cause, effects in EXPLAINS.items()
    for effect in effects
    if cause in LABELS and effect in LABELS
]


def one(rule: str, environment: str, severity: str = "", **labels: str) -> dict[str, str]:
    """The labels of an alert as Prometheus sends it; the worst severity if none is given."""
    of_rule = LABELS[rule]
    found = of_rule[severity or ("critical" if "critical" in of_rule else "warning")]
    where = {} if rule in GLOBAL else {"environment": environment}
    of = {"dependency": "llm"} if RULE_OF_KEY[rule].of_dependency and rule not in GLOBAL else {}
    return {**found, **where, **of, **labels}


def as_bad_as(pair: tuple[str, str]) -> str:
    """The severity of the effect: a warning hides no critical alert."""
    cause, effect = pair
    return "critical" if {"critical"} <= LABELS[cause].keys() & LABELS[effect].keys() else "warning"


class Alertmanager:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v2"

    def post(self, alerts: Iterable[dict[str, str]]) -> None:
        ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        body = [{"labels": labels, "endsAt": ends} for labels in alerts]
        httpx.post(f"{self.url}/alerts", json=body, trust_env=False, timeout=10).raise_for_status()

    def up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/status", trust_env=False, timeout=5).is_success
        except httpx.TransportError:
            return False

    def hidden_by(self) -> dict[frozenset[tuple[str, str]], list[dict[str, str]]]:
        """Each alert -> the alerts that inhibit it."""
        found = httpx.get(f"{self.url}/alerts", trust_env=False, timeout=10).json()
        names = {alert["fingerprint"]: alert["labels"] for alert in found}
        return {
            frozenset(alert["labels"].items()): [names[mark] for mark in alert["status"]["inhibitedBy"]]
            for alert in found
        }


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


@pytest.fixture
def alertmanager(sink: Sink, tmp_path: Path) -> Iterator[Alertmanager]:
    program, port = tool("prometheus-alertmanager"), free_port()
    config = yaml.safe_load(FILES["docs/monitoring/alertmanager.example.yml"]().replace(HOOKS, sink.url))
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "0s", "group_interval": "1s"}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(config))
    command = [
        program,
        f"--config.file={tmp_path / 'alertmanager.yml'}",
        f"--storage.path={tmp_path / 'alerts'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = spawn(command, log=log)
        try:
            started = Alertmanager(port)
            wait_until(started.up, "Alertmanager", every_s=0.05)
            yield started
        finally:
            stop(process)


def test_a_cause_hides_what_it_explains_and_nothing_else(alertmanager: Alertmanager, sink: Sink) -> None:
    local = [pair for pair in PAIRS if not GLOBAL & set(pair)]
    assert len(local) > 15
    causes = {pair: one(pair[0], "-".join(pair)) for pair in local}
    mild = one("local", "mild", "warning")
    elsewhere = one("open", "elsewhere", dependency="mail")
    severe = one("p99", "levels", "critical")
    alertmanager.post([*causes.values(), mild, elsewhere, severe])
    # A cause hides a moment after its arrival, which group_wait in the generated file allows for: it takes
    # them in order, so that all are known when the last one is.
    last = one("p99", "levels", "warning")
    alertmanager.post([last])
    key = frozenset(last.items())
    wait_until(lambda: alertmanager.hidden_by().get(key) == [severe], every_s=0.05)
    effects = {pair: one(pair[1], "-".join(pair), as_bad_as(pair)) for pair in local}
    quiet = [
        *(one(effect, f"only-{effect}") for _, effect in local),
        one("p99", "mild", "critical"),
        one("retry-budget", "elsewhere"),
        {"alertname": "Other", "severity": "warning", "level": "1"},
    ]
    alertmanager.post([*effects.values(), *quiet])
    wanted = {frozenset(labels.items()) for labels in (*effects.values(), *quiet)}
    wait_until(lambda: wanted <= alertmanager.hidden_by().keys(), every_s=0.05)
    found = alertmanager.hidden_by()
    for pair, labels in effects.items():
        assert found[frozenset(labels.items())] == [causes[pair]], pair
    for labels in quiet:
        assert found[frozenset(labels.items())] == [], labels
    # What is hidden is not sent.
    sent = {frozenset(labels.items()) for labels in quiet}
    wait_until(lambda: sent <= got(sink), "the others", every_s=0.05)
    assert not got(sink) & {frozenset(labels.items()) for labels in effects.values()}


def test_a_cause_of_all_environments_hides_in_each_of_them(alertmanager: Alertmanager) -> None:
    everywhere = [pair for pair in PAIRS if GLOBAL & set(pair)]
    assert {cause for cause, _ in everywhere} >= {"gateway-away", "outbox", "postgres-down", "redis-ops"}
    # One Redis is that of all environments.
    assert ("redis-down", "outbox") in everywhere
    for cause, effect in everywhere:
        hides_in_each(alertmanager, cause, effect)


def hides_in_each(alertmanager: Alertmanager, cause: str, effect: str) -> None:
    severity = as_bad_as((cause, effect))
    hidden = [one(effect, environment, severity) for environment in ("production", "staging")]
    keys, by = {frozenset(labels.items()) for labels in hidden}, one(cause, "production")
    alertmanager.post(hidden)
    wait_until(lambda: keys <= alertmanager.hidden_by().keys(), every_s=0.05)
    alertmanager.post([by])

    def all_hidden() -> bool:
        found = alertmanager.hidden_by()
        return all(by in found[key] for key in keys)

    wait_until(all_hidden, f"{cause} hides {effect}", every_s=0.05)
    alertmanager_resolve(alertmanager, [*hidden, by])


def alertmanager_resolve(alertmanager: Alertmanager, alerts: list[dict[str, str]]) -> None:
    now = datetime.now(UTC).isoformat()
    body = [{"labels": labels, "endsAt": now} for labels in alerts]
    httpx.post(f"{alertmanager.url}/alerts", json=body, trust_env=False, timeout=10).raise_for_status()


def got(sink: Sink) -> set[frozenset[tuple[str, str]]]:
    return {
        frozenset(alert["labels"].items()) for _, message in list(sink.got) for alert in message["alerts"]
    }
