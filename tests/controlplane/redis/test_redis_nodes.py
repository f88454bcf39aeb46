"""What the worker reads of real servers of Redis, and the alert about one that is near its capacity."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.models import Alert
from controlplane.embedded.valkey import Valkey
from controlplane.fleet.models import RedisNode
from controlplane.metrics import FleetCollector
from controlplane.redis.nodes import read_nodes
from controlplane.repair.redis_nodes import FORGET_AFTER
from controlplane.repair.tasks import measure_redis_nodes
from controlplane.status.read_facts import read_facts
from tests.controlplane.alerts.test_alert_evaluator import let_pass
from tests.waiting import wait_until


def exported() -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in FleetCollector().collect()
        for sample in family.samples
        if sample.name.startswith("fuseboard_redis_")
    }


@pytest.fixture
def primary(valkey: Valkey, settings: Any) -> Valkey:
    settings.REDIS_URL = valkey.url
    return valkey


def test_a_primary_names_its_replica_and_both_are_read(primary: Valkey, tmp_path: Path) -> None:
    (tmp_path / "replica").mkdir()
    replica = Valkey(tmp_path / "replica")
    replica.password = primary.password
    replica.start()
    try:
        with redis.Redis.from_url(replica.url) as client:
            client.config_set("masterauth", primary.password)
            client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        name = f"127.0.0.1:{replica.port}"
        wait_until(lambda: name in {node.address for node in read_nodes(primary.url)})
        found = {node.role: node for node in read_nodes(primary.url)}
        assert (found["primary"].up, found["primary"].lag_s) == (True, None)
        assert found["primary"].memory_bytes > 100_000
        assert (found["replica"].address, found["replica"].up) == (name, True)
        assert (found["replica"].lag_s or 0) >= 0
    finally:
        replica.stop()


@pytest.mark.django_db(transaction=True)
def test_commands_are_counted_between_two_readings(production: str, primary: Valkey, settings: Any) -> None:
    settings.REDIS_CAPACITY_OPS = 500
    measure_redis_nodes()
    RedisNode.objects.update(read_at=timezone.now() - timedelta(seconds=10))
    with redis.Redis.from_url(primary.url) as client, client.pipeline(transaction=False) as pipeline:
        for _ in range(5_000):
            pipeline.ping()
        pipeline.execute()
    measure_redis_nodes()
    node = f"127.0.0.1:{primary.port}"
    ops_per_s = RedisNode.objects.get().ops_per_s or 0.0
    # The second reading comes a moment after ten seconds.
    assert 200 < ops_per_s < 510
    assert 0 < (RedisNode.objects.get().cpu_share or 0.0) < 1
    found = exported()
    assert found["fuseboard_redis_up", node, "primary"] == 1
    assert found["fuseboard_redis_ops_per_second", node] == ops_per_s
    assert found["fuseboard_redis_capacity_ops", node] == 500
    assert found["fuseboard_redis_memory_bytes", node] > 100_000
    assert ("fuseboard_redis_memory_limit_bytes", node) not in found, "it has no limit"
    # Another process counts from zero.
    RedisNode.objects.update(run_id="another", commands=10**9, read_at=timezone.now() - timedelta(seconds=10))
    measure_redis_nodes()
    assert 0 <= (RedisNode.objects.get().ops_per_s or 0.0) < 10_000


@pytest.mark.django_db(transaction=True)
def test_a_server_that_is_gone_has_0_and_is_forgotten(production: str, primary: Valkey) -> None:
    measure_redis_nodes()
    primary.stop()
    measure_redis_nodes()
    node = f"127.0.0.1:{primary.port}"
    assert exported() == {("fuseboard_redis_up", node, "primary"): 0}
    primary.start()
    RedisNode.objects.create(
        address="10.0.0.9:6379",
        role="replica",
        up=True,
        commands=0,
        memory_bytes=0,
        memory_limit_bytes=0,
        read_at=timezone.now() - FORGET_AFTER / 2,
    )
    measure_redis_nodes()
    assert exported()["fuseboard_redis_up", "10.0.0.9:6379", "replica"] == 0
    RedisNode.objects.filter(role="replica").update(read_at=timezone.now() - FORGET_AFTER)
    measure_redis_nodes()
    assert [row.address for row in RedisNode.objects.all()] == [node]


@pytest.mark.django_db(transaction=True)
def test_a_busy_server_is_an_alert_if_its_capacity_is_known(production: str, settings: Any) -> None:
    RedisNode.objects.create(
        address="10.0.0.1:6379",
        role="primary",
        up=True,
        commands=1,
        ops_per_s=85_000,
        memory_bytes=1,
        memory_limit_bytes=0,
        read_at=timezone.now() + timedelta(minutes=5),
    )
    settings.REDIS_CAPACITY_OPS = 0
    assert [one.used for one in read_facts(production).redis_servers] == [0.0]
    # The setting is missing: the CPU of the thread that executes commands says what the server bears.
    RedisNode.objects.update(cpu_share=0.05)
    assert [one.used for one in read_facts(production).redis_servers] == [0.0]
    RedisNode.objects.update(cpu_share=0.85)
    [busy] = read_facts(production).redis_servers
    assert (busy.capacity_ops, round(busy.used, 4)) == (100_000, 0.85)
    settings.REDIS_CAPACITY_OPS = 100_000
    evaluate_environment(production)
    alert = Alert.objects.get(key="redis-ops:10.0.0.1:6379")
    assert (alert.severity, alert.level, alert.runbook) == ("warning", 2, "redis-busy")
    RedisNode.objects.update(ops_per_s=95_000)
    evaluate_environment(production)
    alert.refresh_from_db()
    assert alert.severity == "critical"
    # Figures that are old say nothing.
    RedisNode.objects.update(read_at=timezone.now() - timedelta(minutes=5))
    evaluate_environment(production)
    alert.refresh_from_db()
    assert alert.blind_since is not None


def node(number: int, *, up: bool = True, age_s: float = 0, **fields: Any) -> RedisNode:
    usual = {"role": "replica", "up": up, "commands": 1, "memory_bytes": 1, "memory_limit_bytes": 0}
    read_at = timezone.now() + timedelta(seconds=60 - age_s)
    return RedisNode.objects.create(address=f"10.0.0.{number}:6379", read_at=read_at, **(usual | fields))


def found_at(production: str) -> dict[str, tuple[str, str]]:
    evaluate_environment(production)
    rows = Alert.objects.exclude(state="resolved")
    return {row.key: (row.severity, row.state) for row in rows}


@pytest.mark.django_db(transaction=True)
def test_more_than_three_degraded_servers_are_for_people_on_call(production: str, settings: Any) -> None:
    settings.REDIS_CAPACITY_OPS = 100_000
    node(1, ops_per_s=95_000)
    node(2, up=False)
    node(3, lag_s=11)
    node(4, age_s=200)
    node(5, memory_limit_bytes=1)
    RedisNode.objects.filter(address__startswith="10.0.0.5").update(memory_bytes=0)
    degraded = {f"redis-node:10.0.0.{number}:6379" for number in (2, 3, 4)}
    assert set(found_at(production)) == degraded | {"redis-ops:10.0.0.1:6379", "redis-nodes"}
    alert = Alert.objects.get(key="redis-nodes")
    assert (alert.level, alert.severity, alert.text) == (2, "critical", "4 servers of Redis are degraded")
    assert set(Alert.objects.filter(key__startswith="redis-node:").values_list("level", flat=True)) == {1}
    RedisNode.objects.filter(address__startswith="10.0.0.3").update(lag_s=1)
    assert "redis-nodes" not in found_at(production), "3 are not more than 3"


@pytest.mark.django_db(transaction=True)
def test_a_server_that_stops_while_it_is_busy_does_not_end_its_alert(production: str, settings: Any) -> None:
    settings.REDIS_CAPACITY_OPS = 100_000
    busy, _ = node(1, ops_per_s=95_000), node(2)
    found_at(production)
    Alert.objects.update(state="firing", fired_at=timezone.now())
    RedisNode.objects.filter(pk=busy.pk).update(up=False, ops_per_s=None)
    assert found_at(production)["redis-ops:10.0.0.1:6379"] == ("critical", "firing")
    assert Alert.objects.get(key="redis-ops:10.0.0.1:6379").blind_since is not None
    # It is forgotten: there is nothing left that could be busy.
    RedisNode.objects.filter(pk=busy.pk).delete()
    assert found_at(production)["redis-ops:10.0.0.1:6379"] == ("critical", "recovering")


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_reads_no_server_is_blind_and_concludes_nothing(production: str) -> None:
    node(1, lag_s=20)
    found_at(production)
    Alert.objects.update(state="firing", fired_at=timezone.now())
    RedisNode.objects.update(read_at=timezone.now() - timedelta(seconds=120))
    assert found_at(production)["blind:redis"] == ("critical", "pending")
    let_pass(60)
    assert found_at(production) == {
        "blind:redis": ("critical", "firing"),
        "redis-node:10.0.0.1:6379": ("warning", "firing"),
    }
    alert = Alert.objects.get(key="blind:redis")
    assert (alert.level, alert.runbook) == (2, "figures-missing")
    assert alert.detail.endswith(": redis-node, redis-nodes, redis-ops.")
    RedisNode.objects.update(read_at=timezone.now() + timedelta(seconds=60), lag_s=0)
    assert found_at(production) == {
        "blind:redis": ("critical", "recovering"),
        "redis-node:10.0.0.1:6379": ("warning", "recovering"),
    }
