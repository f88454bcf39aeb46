"""Each metric that a process exports is in the catalogue, and the documents are made from it."""

import ast
from pathlib import Path

import pytest
from django.test import Client
from prometheus_client import REGISTRY
from prometheus_client.core import Metric as Family

from controlplane import worker_metrics
from controlplane.gateway.metrics import CALLED_WITHIN_S, GatewayCollector
from controlplane.metric_catalogue.every import EVERY
from controlplane.metric_catalogue.fleet import MAX_PROTECTED
from controlplane.metric_catalogue.metric import GATEWAY, POD, WEB, WORKER, Counter
from controlplane.monitoring.metrics_page import most_series
from fuseboard.contract import pod_figures
from fuseboard.contract.load import CallLoad, TierLoad
from fuseboard.contract.policy import Dependency
from fuseboard.contract.protection import CallProtection, Retry
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, configuration, policy, ready_gateway

ROOT = Path(__file__).resolve().parents[3]
_PROTECTION = CallProtection(retry=Retry())
BY_NAME = {metric.name: metric for metric in EVERY}


def test_each_name_is_in_the_catalogue_once():
    assert len(BY_NAME) == len(EVERY)


@pytest.mark.parametrize("process", [WEB, WORKER, GATEWAY])
def test_a_process_exports_fewer_than_5000_series(process):
    assert most_series(process) <= 4_970, "Python adds up to 30 of its own"


def test_no_other_module_makes_a_metric():
    """The queries of alert rules name metrics too; test_monitoring_files.py checks that these exist."""
    made = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "controlplane").rglob("*.py")
        if "alerts/rules" not in str(file)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).startswith("fuseboard_")
    }
    assert all(path.startswith("controlplane/metric_catalogue/") for path in made), made


def test_web_exports_what_the_catalogue_says(production):
    Client().get("/healthz")
    names = checked(REGISTRY.collect())
    of_web = {metric.name for metric in EVERY if WEB in metric.by}
    of_worker = {metric.name for metric in EVERY if WORKER in metric.by}
    # The modules of a worker are loaded too.
    assert worker_metrics.TASKS is not None
    assert names <= of_web | of_worker


def test_a_gateway_exports_what_the_catalogue_says():
    names = checked(GatewayCollector(ready_gateway()).collect())
    assert names == {metric.name for metric in EVERY if GATEWAY in metric.by}


def test_a_pod_exports_what_the_catalogue_says():
    exported = {figure.series for figure in pod_figures.EVERY}
    assert exported == {metric.name for metric in EVERY if POD in metric.by}
    # Only if each of 200 dependencies refuses calls for each reason.
    assert most_series(POD) < 7_000


def test_a_gateway_of_200_dependencies_exports_fewer_than_5000_series():
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    names = [f"vendor-{number:03}" for number in range(200)]
    document = policy(dependencies=tuple(Dependency(name=name, protection=_PROTECTION) for name in names))
    gateway.configurations["production"] = configuration(document=document)
    fleet = gateway.fleet("production")

    def hear(first: int) -> None:
        for pod in range(10):
            fleet.absorb(beat(f"pod-{pod}", protection=tuple(busy(name, first) for name in names[pod::10])))
        fleet.refresh_rates(fleet.servers.values())

    def busy(name: str, count: int) -> CallLoad:
        tier = TierLoad(limit=9, active=3, queued=1, entered=count, full=count, timed_out=count)
        return CallLoad(
            dependency=name,
            tiers=(tier, tier, tier),
            mean_ms=5,
            p95_ms=5,
            wait_p95_ms=5,
            first_calls=count * (1 + int(name[-3:])),
            queue_size=5,
            queue_predicted=5,
        )

    for number in range(4):
        hear(number * 50)
        clock.turn(5.0)
    collector = GatewayCollector(gateway)
    families = {family.name: family for family in collector.collect()}
    assert 2_000 < sum(len(family.samples) for family in families.values()) < 5_000
    for name, family in families.items():
        metric = BY_NAME[name + ("_total" if family.type == "counter" else "")]
        assert len(family.samples) <= metric.most, name
    shown = {sample.labels["dependency"] for sample in families["fuseboard_fleet_call_seconds"].samples}
    assert shown == set(names[-MAX_PROTECTED:]), "the busiest"


def test_a_dependency_without_calls_for_an_hour_has_no_series():
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    document = policy(dependencies=(Dependency(name="llm", protection=_PROTECTION),))
    gateway.configurations["production"] = configuration(document=document)
    fleet, collector = gateway.fleet("production"), GatewayCollector(gateway)

    def shown() -> bool:
        for _ in range(3):
            fleet.absorb(beat(protection=(CallLoad(dependency="llm", first_calls=7, mean_ms=5),)))
            fleet.refresh_rates(fleet.servers.values())
            clock.turn(5.0)
        families = {family.name: family for family in collector.collect()}
        return bool(families["fuseboard_fleet_call_seconds"].samples)

    assert shown()
    clock.turn(CALLED_WITHIN_S)
    assert not shown()


def checked(families) -> set[str]:
    found = set()
    family: Family
    for family in families:
        if not family.name.startswith("fuseboard_"):
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        metric = BY_NAME[name]
        assert (family.documentation, family.type) == (metric.help, metric.type), name
        assert isinstance(metric, Counter) == (family.type == "counter")
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), name
        found.add(name)
    return found
