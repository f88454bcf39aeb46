"""The control plane with a Cluster, and behind Sentinels: agents there receive what it publishes."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from hashlib import sha1
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.models import Alert
from controlplane.backlogs.collect import measure_backlogs
from controlplane.breakers.breakers_in_redis import stored_breakers
from controlplane.breakers.collect import collect_transitions
from controlplane.breakers.models import Transition
from controlplane.breakers.overrides import end_override, override_breaker, reset_breaker
from controlplane.editing import edits
from controlplane.embedded.reachable import problem
from controlplane.policies.models import Tenant, TenantQuota
from controlplane.publishing.publish import PUBLISH_CONFIG, PublishError, publish_head, read_head
from controlplane.reconciliation import copying
from controlplane.reconciliation.models import AllowedAlone
from controlplane.redis.scripts import limits as client_of_limits
from controlplane.repair.tasks import measure_redis_nodes, reconcile_environment
from controlplane.status import read_watched
from controlplane.status.read_facts import read_backlogs
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.watch import Watch
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import BreakerState, Mode, OverrideMode, Period, Reason
from fuseboard.errors import Refused
from tests.agents.redis_topologies import PAUSED_S, Cluster, Member, Watched
from tests.agents.servers import Server
from tests.controlplane.alerts.test_alert_evaluator import let_pass, measure
from tests.waiting import wait_until

DEPENDENCIES = ("openai", "stripe", "search", "mail", "maps")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[Cluster]:
    formation = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        formation.start()
        yield formation
    finally:
        formation.stop()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: Any) -> Iterator[Watched]:
    formation = Watched(tmp_path_factory.mktemp("watched"))
    try:
        formation.start()
        yield formation
    finally:
        formation.stop()


class Pod:
    """An agent that follows the configuration in Redis, on its own loop."""

    def __init__(self, url: str) -> None:
        self.configuration = Configuration(environment="production")
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> "Pod":
        self._thread.start()
        self._do(self._start())
        wait_until(lambda: self.server.admission.mode is Mode.SHARED)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def refusal(self, dependency: str) -> Reason | None:
        try:
            self._do(self.server.admission.admit_call(dependency))
        except Refused as refused:
            return refused.decision.reason
        return None

    def allowed(self, tenant: str) -> bool:
        return self._do(self.server.admission.admit_request(tenant)).allowed

    @property
    def revision(self) -> int:
        return self.configuration.snapshot.head.revision

    async def _start(self) -> None:
        self.watch = Watch(url=self._url, configuration=self.configuration)
        self.server = Server(self._url, "web-1", self.configuration)
        self.watch.start()
        self.server.admission.start()

    async def _stop(self) -> None:
        await self.watch.stop()
        await self.server.admission.stop()

    def _do(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)


@pytest.fixture
def on_cluster(cluster: Cluster, settings: Any) -> Cluster:
    cluster.flush()
    settings.REDIS_URL = cluster.url
    return cluster


@pytest.fixture
def behind_sentinels(watched: Watched, settings: Any) -> Watched:
    settings.REDIS_URL = watched.url
    return watched


def suspend(ada: Any) -> int:
    return edits.suspend_tenant(environment="production", tenant="acme", reason="for a test", actor=ada)


def once_answered(do: Callable[[], object]) -> None:
    """As the sweep does: again, until Redis answers."""

    def done() -> bool:
        try:
            do()
        except (redis.RedisError, PublishError):
            return False
        return True

    wait_until(done)


def shard_of(cluster: Cluster, key: str) -> list[Member]:
    """The primary that has the key, and its replica: without both, no server takes over."""
    primary = cluster.primary_of(key)
    of = {node: node.client.info("replication").get("master_port") for node in cluster.nodes}
    replicas = [node for node, its_primary in of.items() if its_primary == primary.port]
    return [primary, *replicas]


def open_alerts(environment: str) -> dict[str, str]:
    # The figures of gateways, as of now.
    measure(0.0)
    evaluate_environment(environment)
    return dict(Alert.objects.exclude(state="resolved").values_list("key", "state"))


class TestCluster:
    def test_edits_and_nudges_reach_an_agent(self, on_cluster: Cluster, production: str, ada: Any):
        with Pod(on_cluster.url) as pod:
            assert pod.allowed("acme")
            revision = suspend(ada)
            wait_until(lambda: pod.revision == revision)
            wait_until(lambda: not pod.allowed("acme"))

    def test_overrides_and_resets_work_on_every_shard(self, on_cluster: Cluster, production: str, ada: Any):
        for name in DEPENDENCIES[1:]:
            edits.create_dependency(
                environment="production", dependency=name, kind="llm", reason="for a test", actor=ada
            )
        shards = {on_cluster.primary_of(keys.breaker("production", name)) for name in DEPENDENCIES}
        assert len(shards) == 3
        about: dict[str, Any] = {
            "environment": "production",
            "reason": "vendor has an incident",
            "actor": ada,
        }
        with Pod(on_cluster.url) as pod:
            for name in DEPENDENCIES:
                override_breaker(
                    dependency=name,
                    mode=OverrideMode.FORCED_OPEN,
                    expires_at=timezone.now() + timedelta(minutes=5),
                    **about,
                )
                wait_until(lambda: pod.refusal(name) is Reason.FORCED_OPEN)  # noqa: B023
            found = stored_breakers("production", DEPENDENCIES)
            assert found is not None
            assert {breaker and breaker.state for breaker in found.values()} == {BreakerState.OPEN}
            for name in DEPENDENCIES:
                end_override(dependency=name, **about)
                reset_breaker(dependency=name, **about)
                wait_until(lambda: pod.refusal(name) is None)  # noqa: B023
        collect_transitions("production")
        assert set(Transition.objects.values_list("dependency__name", flat=True)) == set(DEPENDENCIES)

    def test_what_pods_allowed_without_redis_is_found_on_every_primary(
        self, on_cluster: Cluster, production: str
    ):
        for number in range(30):
            quota = keys.tenant_quota(production, f"t-{number}", "requests")
            client_of_limits().hincrby(keys.offline_totals(quota), keys.offline_field(quota), 1)
        assert copying.copy() == 30
        assert AllowedAlone.objects.count() == 30

    def test_the_backlogs_of_every_shard_are_read(self, on_cluster: Cluster, production: str, ada: Any):
        for name in DEPENDENCIES[1:]:
            edits.create_dependency(
                environment="production", dependency=name, kind="llm", reason="for a test", actor=ada
            )
        for number, name in enumerate(DEPENDENCIES):
            client_of_limits().hset(keys.backlog(production, name, "stats"), "submitted", str(number))
        assert measure_backlogs(production) == len(DEPENDENCIES)
        found = {one.dependency: one.figures.submitted for one in read_backlogs(production)}
        assert found == {name: number for number, name in enumerate(DEPENDENCIES)}

    def test_backlogs_of_a_primary_that_does_not_answer_hide_no_other(
        self, on_cluster: Cluster, production: str, ada: Any
    ):
        for name in DEPENDENCIES[1:]:
            edits.create_dependency(
                environment="production", dependency=name, kind="llm", reason="for a test", actor=ada
            )
        for name in DEPENDENCIES:
            client_of_limits().hset(keys.backlog(production, name, "stats"), "submitted", "1")
        assert measure_backlogs(production) == len(DEPENDENCIES)
        shard = shard_of(on_cluster, keys.backlog(production, "openai", "stats"))
        there = {
            name
            for name in DEPENDENCIES
            if on_cluster.primary_of(keys.backlog(production, name, "stats")) is shard[0]
        }
        assert there < set(DEPENDENCIES)
        for name in set(DEPENDENCIES) - there:
            client_of_limits().hset(keys.backlog(production, name, "stats"), "submitted", "2")
        try:
            for member in shard:
                member.send(signal.SIGSTOP)
            measure_backlogs(production)
        finally:
            for member in shard:
                member.send(signal.SIGCONT)
        found = {one.dependency: one.figures.submitted for one in read_backlogs(production)}
        assert found == {name: 1 if name in there else 2 for name in DEPENDENCIES}
        on_cluster.settle()

    def test_budgets_of_a_primary_that_does_not_answer_hide_no_alert_about_servers(
        self, on_cluster: Cluster, production: str, ada: Any, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(read_watched, "READ_AGAIN_S", 0.0)
        read_watched.forget()
        key = keys.tenant_quota(production, "acme", "day")
        shard = shard_of(on_cluster, key)
        names = (f"tenant-{number}" for number in range(100))
        other = next(
            name
            for name in names
            if on_cluster.primary_of(keys.tenant_quota(production, name, "day")) is not shard[0]
        )
        edits.create_tenant(environment=production, tenant=other, tier="pro", reason="for a test", actor=ada)
        daily: dict[str, Any] = {"limit": 10, "window_s": 60, "algorithm": "fixed_window", "period": "day"}
        for tenant in Tenant.objects.filter(key__in=("acme", other)):
            TenantQuota.objects.create(tenant=tenant, name="day", **daily)
        began, _ = period_around(time.time_ns() // 1000, Period.DAY, "UTC")
        client_of_limits().set(key, f"{began} 9")
        measure_redis_nodes()
        assert set(open_alerts(production)) == {"quota:acme/day"}
        let_pass(60)
        assert open_alerts(production) == {"quota:acme/day": "firing"}
        try:
            for member in shard:
                member.send(signal.SIGSTOP)
            measure_redis_nodes()
            # No pod names its replica, so that the last answer of the replica counts for a minute.
            silent = f"redis-node:127.0.0.1:{shard[0].port}"
            assert set(open_alerts(production)) == {"quota:acme/day", "blind:budgets", silent}
            let_pass(60)
            firing = dict.fromkeys(("quota:acme/day", "blind:budgets", silent), "firing")
            assert open_alerts(production) == firing
            blind = Alert.objects.get(key="blind:budgets")
            assert (blind.level, blind.severity, blind.runbook) == (2, "warning", "figures-missing")
            assert blind.text == "What is spent of quotas and budgets cannot be read"
            assert blind.detail == (
                "Redis gives no answer, or an error, for 1 of 2."
                " Alerts about them keep their state: acme/day."
            )
            hidden = set(Alert.objects.filter(blind_since__isnull=False).values_list("key", flat=True))
            assert hidden == {"quota:acme/day"}
        finally:
            for member in shard:
                member.send(signal.SIGCONT)
        on_cluster.settle()
        measure_redis_nodes()
        assert open_alerts(production) == firing | dict.fromkeys(("blind:budgets", silent), "recovering")

    def test_an_emptied_cluster_is_refilled(self, on_cluster: Cluster, production: str):
        on_cluster.flush()
        assert read_head(client_of_limits(), "production") is None
        reconcile_environment("production")
        head = read_head(client_of_limits(), "production")
        assert head is not None
        assert head.revision > 0

    def test_a_lost_script_is_loaded_again_where_its_key_is_and_on_no_other_primary(
        self, on_cluster: Cluster, production: str, ada: Any
    ):
        """So a primary that is down does not keep the others from being published to."""
        for node in on_cluster.primaries():
            node.client.script_flush()
        head = keys.config_head("production")
        revision = suspend(ada)
        publish_head("production")
        owner = on_cluster.primary_of(head)
        assert owner.client.hget(head, "revision") == str(revision).encode()
        sha = sha1(PUBLISH_CONFIG.text.encode(), usedforsecurity=False).hexdigest()
        known = {node.port: node.client.script_exists(sha)[0] for node in on_cluster.primaries()}
        assert [port for port, there in known.items() if there] == [owner.port]

    def test_a_new_primary_is_found_and_published_to(self, on_cluster: Cluster, production: str, ada: Any):
        head = keys.config_head("production")
        before = on_cluster.primary_of(head)
        index = on_cluster.nodes.index(before)
        replica = on_cluster.nodes[(index + 3) % 6]
        with Pod(on_cluster.url) as pod:
            replica.client.execute_command("CLUSTER", "FAILOVER")
            wait_until(lambda: on_cluster.primary_of(head) is replica)
            revision = suspend(ada)
            once_answered(lambda: publish_head("production"))
            assert replica.client.hget(head, "revision") == str(revision).encode()
            wait_until(lambda: pod.revision == revision)

    def test_a_cluster_counts_as_reachable(self, on_cluster: Cluster):
        assert problem("FUSEBOARD_REDIS_URL", on_cluster.url) is None
        nowhere = problem("FUSEBOARD_REDIS_URL", "redis+cluster://:secret@127.0.0.1:1,127.0.0.1:2/")
        assert nowhere is not None
        assert nowhere.startswith("FUSEBOARD_REDIS_URL names 127.0.0.1:1, 127.0.0.1:2, which cannot be used")
        assert "secret" not in nowhere


class TestSentinel:
    def test_edits_follow_a_failover(self, behind_sentinels: Watched, production: str, ada: Any):
        before = behind_sentinels.primary()
        with Pod(behind_sentinels.url) as pod:
            wait_until(lambda: pod.revision > 0)
            before.kill()
            wait_until(lambda: behind_sentinels.primary() is not before, within_s=2 * PAUSED_S)
            revision = suspend(ada)
            once_answered(lambda: publish_head("production"))
            wait_until(lambda: pod.revision == revision)
            head = behind_sentinels.primary().client.hget(keys.config_head("production"), "revision")
            assert head == str(revision).encode()
