"""The change feed is complete: an agent that applied revision R has exactly the contents of R.

A model that has every revision runs beside the real parts: the publisher and its script with a real
Redis, the configuration of the gateway, and that of an agent. The agent learns of changes from nudges
that may be lost and from heartbeats whose answers may be late. Each part may be restarted, emptied or
restored.
"""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from controlplane.gateway.answers.configuration import MAX_LISTED, Configuration, Loaded
from controlplane.publishing import publish
from controlplane.publishing.snapshot import Snapshot
from fuseboard.configuration.checked_config import check_config, check_tenants
from fuseboard.configuration.current_configuration import Configuration as Held
from fuseboard.configuration.watch import Watch
from fuseboard.contract import keys
from fuseboard.contract.policy import (
    ConfigHead,
    Policy,
    TenantRecord,
    Tier,
    decode_policy,
    encode_policy,
    encode_tenant,
    hash_of,
)
from fuseboard.contract.sync import Nudge, decode_nudge, decode_response
from fuseboard.contract.words import ConfigSource
from tests.controlplane.gateway.manual_gateway import beat

TENANTS = [f"t{n}" for n in range(6)]
TIERS = ("free", "pro", "enterprise")
#: So many that a nudge does not list them. One edit changes all of them.
CROWD = [f"crowd-{n}" for n in range(MAX_LISTED + 1)]

Tenants = dict[str, str]
Version = tuple[int, int]


def policy_of(number: int) -> bytes:
    return encode_policy(
        Policy(
            environment="production",
            default_tier="free",
            tiers=tuple(Tier(name=name, priority=number % 100) for name in TIERS),
        )
    )


class Feed(RuleBasedStateMachine):
    store: Any
    url: str

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.store.flushall()
        self.version: Version = (1, 1)
        self.tenants: Tenants = dict.fromkeys(TENANTS[:3], "free")
        self.policy_number = 1
        self.changed: dict[str, int] = dict.fromkeys(self.tenants, 1)
        self.truth: dict[Version, tuple[str, Tenants]] = {}
        self.backups: list[Any] = []
        self.nudges: list[Nudge] = []
        self.late: list[tuple[Any, Any]] = []
        self.remember()
        self.start_gateway()
        self.start_agent()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.watch._source.close())
            self.loop.close()

    # Postgres

    def remember(self) -> None:
        self.truth[self.version] = (hash_of(policy_of(self.policy_number)), dict(self.tenants))

    def edit(self, changes: dict[str, str | None]) -> None:
        self.version = (self.version[0], self.version[1] + 1)
        for tenant, tier in changes.items():
            if tier is None:
                self.tenants.pop(tenant, None)
            else:
                self.tenants[tenant] = tier
            self.changed[tenant] = self.version[1]
        self.remember()

    @rule(
        tenant=st.sampled_from(TENANTS),
        tier=st.sampled_from((*TIERS, None)),
        told=st.sampled_from(("nobody", "redis", "redis and a nudge", "gateway", "everybody")),
    )
    def edit_a_tenant(self, tenant: str, tier: str | None, told: str) -> None:
        self.edit({tenant: tier})
        if told in ("redis", "redis and a nudge", "everybody"):
            self.publish(heard=told != "redis")
        if told in ("gateway", "everybody"):
            self.load()

    @rule(follows=st.sampled_from(("redis", "gateway")))
    def follow(self, follows: str) -> None:
        """Deliver everything that waits to the agent."""
        if follows == "redis":
            self.look_at_redis()
        else:
            self.ask_the_gateway()
            self.hear_an_answer(newest=True)

    @rule(what=st.sampled_from(("crowd", "policy", "backup", "restore", "flush", "gateway", "agent")))
    def something_rare(self, what: str) -> None:
        if what == "crowd":
            self.edit(dict.fromkeys((*CROWD, TENANTS[0]), TIERS[len(self.truth) % 3]))
        elif what == "policy":
            self.policy_number += 1
            self.edit({})
        elif what == "backup":
            self.take_a_backup()
        elif what == "restore":
            self.restore_a_backup_in_a_new_epoch()
        elif what == "flush":
            self.store.flushall()
        elif what == "gateway":
            self.start_gateway()
        else:
            self.start_agent()

    def take_a_backup(self) -> None:
        self.backups.append((self.version, dict(self.tenants), dict(self.changed), self.policy_number))

    def restore_a_backup_in_a_new_epoch(self) -> None:
        if not self.backups:
            return
        (_, tenants, changed, number) = self.backups[-1]
        newest = max(self.truth)
        self.tenants, self.changed, self.policy_number = dict(tenants), dict(changed), number
        self.version = (newest[0] + 1, max(revision for _, revision in self.truth))
        self.edit({})

    # Redis

    def snapshot(self, since: ConfigHead | None) -> Snapshot:
        policy = policy_of(self.policy_number)
        complete = since is None or since.epoch != self.version[0]
        names = [n for n, at in self.changed.items() if complete or (since and at > since.revision)]
        records = {n: TenantRecord(tier=self.tenants[n]) if n in self.tenants else None for n in names}
        return Snapshot(
            head=ConfigHead(epoch=self.version[0], revision=self.version[1], hash=hash_of(policy)),
            policy=policy,
            tenants=records,
            complete=complete,
        )

    @rule(heard=st.booleans())
    def publish(self, heard: bool) -> None:
        seen = publish.read_head(self.store, "production")
        snapshot = self.snapshot(seen)
        if seen == snapshot.head:
            return
        with self.store.pubsub() as subscription:
            subscription.subscribe(keys.config_channel("production"))
            subscription.get_message(timeout=20)
            assert publish._write(self.store, "production", seen, snapshot)
            message = subscription.get_message(timeout=20)
        if heard:
            self.nudges.append(decode_nudge(message["data"]))

    # The gateway

    def start_gateway(self) -> None:
        self.gateway = Configuration("production")
        self.load()

    @rule()
    def load(self) -> None:
        snapshot = self.snapshot(self.gateway.head if self.gateway.loaded else None)
        tenants = {n: encode_tenant(r) if r else None for n, r in snapshot.tenants.items()}
        self.gateway.take(
            Loaded(head=snapshot.head, policy=snapshot.policy, tenants=tenants, whole=snapshot.complete)
        )

    # The agent

    def start_agent(self) -> None:
        if hasattr(self, "watch"):
            self.loop.run_until_complete(self.watch._source.close())
        self.held = Held(environment="production")
        self.watch = Watch(url=self.url, configuration=self.held, rng=random.Random(1))
        self.nudges, self.late = [], []
        for tenant in TENANTS:
            self.held.want(tenant)
        self.settle()

    @rule(tenant=st.sampled_from([*TENANTS, "nobody"]))
    def meet(self, tenant: str) -> None:
        self.held.want(tenant)

    @rule()
    def look_at_redis(self) -> None:
        nudges, self.nudges = self.nudges, []
        self.loop.run_until_complete(self.watch._catch_up(nudges))

    @rule()
    def ask_the_gateway(self) -> None:
        request = beat(applied=self.held.applied, want=tuple(self.held.wanted()))
        answer = self.gateway.answer(request, server_time_us=0, next_ms=1_000, live_servers=1)
        self.late.append((request, decode_response(answer)))

    @rule(newest=st.booleans())
    def hear_an_answer(self, newest: bool) -> None:
        """Deliver one answer, not always in the order of the requests."""
        if not self.late:
            return
        request, response = self.late.pop(-1 if newest else 0)
        self.held.apply(
            check_config(
                environment="production",
                head=response.head,
                document=bytes(response.policy),
                tenants=check_tenants(response.tenants),
                source=ConfigSource.HTTP,
                complete=not response.refetch_tenants and request.applied.epoch == response.head.epoch,
            )
        )

    @invariant()
    def holds_what_it_says(self) -> None:
        if not hasattr(self, "held"):
            return
        snapshot = self.held.snapshot
        version = (snapshot.head.epoch, snapshot.head.revision)
        if version == (0, 0) or not self.held.complete:
            return
        digest, tenants = self.truth[version]
        assert snapshot.head.hash == digest
        assert snapshot.policy == decode_policy(self.held.document)
        for tenant, record in snapshot.tenants.as_dict().items():
            assert (record and record.tier) == tenants.get(tenant), (version, tenant)

    @rule()
    def settle(self) -> None:
        """Without further changes, every part gets the newest revision."""
        self.publish(heard=False)
        self.load()
        for _ in range(4):
            self.look_at_redis()
            self.ask_the_gateway()
            self.hear_an_answer(newest=True)
        self.late = []
        head = self.held.snapshot.head
        assert (head.epoch, head.revision) == self.version
        assert self.held.complete


@pytest.fixture
def no_pause_is_an_outage() -> None:
    """The published deadline stays: these agents decide nothing, and their whole policy is compared."""


def test_an_agent_that_applied_a_revision_has_exactly_that_revision(text_limits: Any, redis_url: str) -> None:
    class Machine(Feed):
        store, url = text_limits, redis_url

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
