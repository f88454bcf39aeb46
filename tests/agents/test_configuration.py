"""The current configuration: newer replaces older, never the other way, and always as a whole."""

import asyncio

import msgspec
import pytest

from fuseboard.configuration.checked_config import (
    MAX_DOCUMENT_BYTES,
    CheckedConfig,
    ConfigError,
    check_config,
    check_tenants,
)
from fuseboard.configuration.current_configuration import WANTED_TENANTS, Configuration
from fuseboard.configuration.server_clock import ServerClock
from fuseboard.configuration.snapshot import Snapshot, TenantTable, built_in
from fuseboard.contract.descriptors import Means
from fuseboard.contract.policy import (
    ConfigHead,
    Dependency,
    Limit,
    Override,
    Policy,
    TenantRecord,
    Tier,
    Tuning,
    encode_policy,
    hash_of,
)
from fuseboard.contract.words import ConfigSource, ConfigStatus, OverrideMode
from tests.agents.servers import SHORT_US
from tests.contract.descriptor_examples import DESCRIBED_POLICY

BURST = Limit(name="burst", limit=10, window_ms=1000)
DAILY = Limit(name="daily", limit=1000, window_ms=86_400_000)
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free", quotas=(BURST, DAILY)), Tier(name="pro", priority=80)),
    dependencies=(Dependency(name="payments"),),
)
#: Tests of the deadline itself use this policy.
PROMPT = msgspec.structs.replace(POLICY, tuning=Tuning(store_deadline_us=SHORT_US))


def offer(
    policy: Policy = POLICY,
    *,
    revision: int,
    epoch: int = 1,
    tenants: dict[str, TenantRecord | None] | None = None,
    source: ConfigSource = ConfigSource.HTTP,
    complete: bool = True,
) -> CheckedConfig:
    document = encode_policy(policy)
    return check_config(
        environment="production",
        head=ConfigHead(epoch=epoch, revision=revision, hash=hash_of(document)),
        document=document,
        tenants=tenants or {},
        source=source,
        complete=complete,
    )


def with_limit(limit: int) -> Policy:
    quota = msgspec.structs.replace(BURST, limit=limit)
    return msgspec.structs.replace(POLICY, tiers=(Tier(name="free", quotas=(quota,)), POLICY.tiers[1]))


@pytest.fixture
def configuration() -> Configuration:
    return Configuration(environment="production")


class TestLookups:
    def test_a_tenants_own_quotas_replace_those_of_its_tier_by_name(self):
        own = Limit(name="burst", limit=99, window_ms=1000)
        extra = Limit(name="exports", limit=1, window_ms=1000)
        tenants = TenantTable()
        tenants.put("acme", TenantRecord(tier="free", quotas=(own, extra)))
        rules = Snapshot(
            head=ConfigHead(epoch=1, revision=1, hash=""),
            policy=POLICY,
            source=ConfigSource.HTTP,
            tenants=tenants,
        ).quotas_of("acme")
        assert rules.quotas == (own, DAILY, extra)
        assert (rules.tier, rules.known, rules.loaded, rules.suspended) == ("free", True, True, False)

    def test_an_unregistered_tenant_gets_the_default_tier(self, configuration: Configuration):
        configuration.want("ghost")
        configuration.apply(offer(revision=1, tenants={"ghost": None}))
        rules = configuration.snapshot.quotas_of("ghost")
        assert (rules.tier, rules.known, rules.loaded) == ("free", False, True)
        assert configuration.snapshot.quotas_of("never seen").loaded is False

    def test_a_record_that_names_a_vanished_tier_gets_the_default_one_and_its_own_quotas(
        self, configuration: Configuration
    ):
        own = Limit(name="exports", limit=1, window_ms=1000)
        configuration.want("acme")
        configuration.apply(offer(revision=1, tenants={"acme": TenantRecord(tier="gone", quotas=(own,))}))
        rules = configuration.snapshot.quotas_of("acme")
        assert (rules.tier, rules.known) == ("free", True)
        assert rules.quotas == (BURST, DAILY, own)

    def test_the_same_rules_are_the_same_object_until_something_changes(self, configuration: Configuration):
        configuration.want("acme")
        configuration.apply(offer(revision=1, tenants={"acme": TenantRecord(tier="pro")}))
        rules = configuration.snapshot.quotas_of("acme")
        assert configuration.snapshot.quotas_of("acme") is rules
        assert rules.priority == 80
        configuration.apply(offer(revision=2))
        assert configuration.snapshot.quotas_of("acme") is not rules

    def test_the_built_in_configuration_limits_nothing(self):
        snapshot = built_in("production")
        assert snapshot.quotas_of("acme").quotas == ()
        assert snapshot.dependency("payments") is None
        assert (snapshot.head.epoch, snapshot.head.revision) == (0, 0)

    def test_tenants_used_of_late_stay_and_others_are_forgotten(self):
        table = TenantTable(capacity=10)
        table.put("busy", TenantRecord(tier="free"))
        for number in range(100):
            table.put(f"t{number}", None)
            assert table.find("busy") is not None
        assert len(table) <= 10
        assert "t0" not in table


class TestOrder:
    @pytest.mark.parametrize(
        ("first", "second", "wins"),
        [((1, 5), (1, 6), 2), ((1, 5), (1, 4), 1), ((1, 5), (2, 1), 2), ((2, 1), (1, 99), 1)],
    )
    def test_a_higher_epoch_wins_then_a_higher_revision(self, configuration, first, second, wins):
        configuration.apply(offer(with_limit(1), epoch=first[0], revision=first[1]))
        configuration.apply(offer(with_limit(2), epoch=second[0], revision=second[1]))
        assert configuration.snapshot.quotas_of("acme").quotas[0].limit == wins

    def test_http_may_encode_the_same_revision_differently_and_redis_may_not(self, configuration):
        configuration.apply(offer(with_limit(1), revision=5, source=ConfigSource.REDIS))
        assert configuration.apply(offer(with_limit(2), revision=5, source=ConfigSource.HTTP))
        assert not configuration.apply(offer(with_limit(1), revision=5, source=ConfigSource.REDIS))
        assert configuration.snapshot.quotas_of("acme").quotas[0].limit == 2

    def test_a_better_source_that_confirms_the_head_is_named_from_then_on(self, configuration):
        configuration.apply(offer(revision=5, source=ConfigSource.DISK))
        assert not configuration.apply(offer(revision=5, source=ConfigSource.HTTP))
        assert configuration.applied.source is ConfigSource.HTTP
        configuration.apply(offer(revision=5, source=ConfigSource.REDIS))
        assert configuration.applied.source is ConfigSource.HTTP

    def test_an_unchanged_policy_is_not_needed_again_for_changed_tenants(self, configuration):
        configuration.want("acme")
        configuration.apply(offer(revision=1, tenants={"acme": TenantRecord(tier="free")}))
        head = msgspec.structs.replace(configuration.snapshot.head, revision=2)
        suspended = {"acme": TenantRecord(tier="free", suspended=True)}
        unchanged = check_config(
            environment="production", head=head, document=b"", tenants=suspended, source=ConfigSource.HTTP
        )
        assert configuration.apply(unchanged)
        assert configuration.snapshot.quotas_of("acme").suspended
        assert configuration.document == encode_policy(POLICY)

    def test_a_head_without_the_policy_that_belongs_to_it_changes_nothing(self, configuration):
        head = ConfigHead(epoch=1, revision=9, hash="never held")
        bare = check_config(
            environment="production", head=head, document=b"", tenants={}, source=ConfigSource.HTTP
        )
        assert not configuration.apply(bare)
        assert configuration.snapshot.head.revision == 0

    def test_a_decision_that_holds_the_old_snapshot_sees_nothing_of_the_new_one(self, configuration):
        configuration.want("acme")
        configuration.apply(offer(revision=1, tenants={"acme": TenantRecord(tier="free")}))
        held = configuration.snapshot
        changed = {"acme": TenantRecord(tier="pro", suspended=True)}
        configuration.apply(offer(revision=2, tenants=changed))
        assert not held.quotas_of("acme").suspended
        assert configuration.snapshot.quotas_of("acme").suspended

    def test_listeners_get_every_new_head_and_nothing_else(self, configuration):
        heard: list[int] = []
        configuration.listen(lambda snapshot: heard.append(snapshot.head.revision))
        for revision in (1, 1, 3, 2):
            configuration.apply(offer(revision=revision))
        assert heard == [1, 3]


def torn(document: bytes) -> tuple[ConfigHead, bytes]:
    return ConfigHead(epoch=1, revision=2, hash=hash_of(document)), document[:-10]


def poisoned(document: bytes) -> tuple[ConfigHead, bytes]:
    return ConfigHead(epoch=1, revision=2, hash=hash_of(document)), document


NEGATIVE = encode_policy(POLICY).replace(b'"limit":10,', b'"limit":-1,')


class TestRefusals:
    @pytest.mark.parametrize(
        ("head_and_document", "says"),
        [
            (torn(encode_policy(POLICY)), "torn"),
            (poisoned(NEGATIVE), "limit"),
            (poisoned(b"<html>"), "policy"),
            (poisoned(b"[" * 20_000), "policy"),
            (poisoned(b"\xff\xfe"), "policy"),
            (poisoned(b"{}"), "environment"),
            (poisoned(encode_policy(msgspec.structs.replace(POLICY, environment="staging"))), "staging"),
            (poisoned(encode_policy(msgspec.structs.replace(POLICY, default_tier="none"))), "default_tier"),
            (poisoned(b" " * (MAX_DOCUMENT_BYTES + 1)), "bytes"),
        ],
    )
    def test_a_bad_document_is_refused_whole_and_says_why(self, head_and_document, says):
        head, document = head_and_document
        with pytest.raises(ConfigError, match=says):
            check_config(
                environment="production",
                head=head,
                document=document,
                tenants={},
                source=ConfigSource.HTTP,
            )

    @pytest.mark.parametrize("cut", range(0, len(encode_policy(POLICY)), 17))
    def test_a_document_with_any_byte_changed_is_refused(self, cut):
        document = bytearray(encode_policy(POLICY))
        head = ConfigHead(epoch=1, revision=1, hash=hash_of(bytes(document)))
        document[cut] ^= 0x01
        with pytest.raises(ConfigError, match="torn"):
            check_config(
                environment="production",
                head=head,
                document=bytes(document),
                tenants={},
                source=ConfigSource.REDIS,
            )

    @pytest.mark.parametrize("tenant", ["", "x" * 201, "new\nline", "\ud800"])
    def test_an_invalid_tenant_id_is_refused(self, tenant):
        with pytest.raises(ConfigError, match="tenants"):
            check_tenants({tenant: None})

    def test_a_tenant_with_the_same_quota_twice_is_refused(self):
        with pytest.raises(ConfigError, match="is listed twice"):
            check_tenants({"acme": TenantRecord(tier="free", quotas=(BURST, BURST))})

    def test_what_is_in_force_stays_and_the_beat_says_rejected(self, configuration):
        configuration.apply(offer(revision=1))
        head = ConfigHead(epoch=1, revision=2, hash="bad")
        configuration.reject(ConfigError("policy: odd", poisoned=True), head=head, source=ConfigSource.HTTP)
        applied = configuration.applied
        assert (applied.revision, applied.status, applied.error) == (1, ConfigStatus.REJECTED, "policy: odd")
        assert configuration.is_poisoned(head)

    def test_a_torn_document_may_be_tried_again(self, configuration):
        head = ConfigHead(epoch=1, revision=2, hash="torn")
        configuration.reject(ConfigError("torn", poisoned=False), head=head, source=ConfigSource.HTTP)
        assert not configuration.is_poisoned(head)

    def test_a_refusal_stands_until_its_own_source_offers_something_good(self, configuration):
        configuration.apply(offer(revision=1, source=ConfigSource.REDIS))
        head = ConfigHead(epoch=1, revision=2, hash="bad")
        configuration.reject(ConfigError("policy: odd", poisoned=True), head=head, source=ConfigSource.HTTP)
        configuration.apply(offer(revision=1, source=ConfigSource.REDIS))
        assert configuration.applied.status is ConfigStatus.REJECTED
        configuration.apply(offer(revision=3, source=ConfigSource.HTTP))
        assert configuration.applied.status is ConfigStatus.APPLIED


class TestTenantsMet:
    def test_only_tenants_held_or_wanted_are_taken_from_a_list_of_changes(self, configuration):
        configuration.want("mine")
        changes = {"mine": TenantRecord(tier="pro"), "somebody else's": TenantRecord(tier="pro")}
        configuration.apply(offer(revision=1, tenants=changes))
        assert "mine" in configuration.snapshot.tenants
        assert "somebody else's" not in configuration.snapshot.tenants
        assert configuration.wanted() == ()

    def test_a_flood_of_new_tenants_is_remembered_up_to_a_bound_and_takes_nobodys_answer(self, configuration):
        for number in range(WANTED_TENANTS + 50):
            configuration.want(f"t{number}")
        assert configuration.wanted() == tuple(f"t{number}" for number in range(WANTED_TENANTS))
        configuration.apply(offer(revision=1, tenants={"t0": TenantRecord(tier="pro")}))
        assert configuration.snapshot.quotas_of("t0").tier == "pro"
        configuration.want("late")
        assert configuration.wanted()[-1] == "late"

    def test_the_revision_is_acknowledged_once_every_tenant_held_has_followed(self, configuration):
        configuration.apply(
            offer(revision=1, source=ConfigSource.DISK, tenants={"a": None, "b": TenantRecord(tier="pro")})
        )
        configuration.apply(offer(revision=9, complete=False, tenants={"a": TenantRecord(tier="pro")}))
        assert configuration.snapshot.head.revision == 9
        assert configuration.applied.revision == 1
        assert configuration.wanted() == ("b",)
        assert configuration.snapshot.quotas_of("b").tier == "pro"
        configuration.apply(offer(revision=9, complete=False, tenants={"b": TenantRecord(tier="free")}))
        assert configuration.applied.revision == 9
        assert configuration.complete

    async def test_meeting_a_tenant_waits_for_its_record_but_not_past_the_deadline(self, configuration):
        configuration.apply(offer(PROMPT, revision=1))
        batch: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        configuration.fetch = lambda: batch
        late = await configuration.load_record("slow")
        assert not late.loaded
        assert not batch.cancelled()

        def answer() -> asyncio.Future[None]:
            done = asyncio.get_running_loop().create_future()
            configuration.apply(offer(PROMPT, revision=1, tenants={"quick": TenantRecord(tier="pro")}))
            done.set_result(None)
            return done

        configuration.fetch = answer
        assert (await configuration.load_record("quick")).tier == "pro"

    async def test_a_call_that_can_wait_for_redis_waits_as_long_for_the_record_of_its_tenant(
        self, configuration
    ):
        configuration.apply(offer(PROMPT, revision=1))
        batch: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        configuration.fetch = lambda: batch

        async def answer() -> None:
            # Later than the deadline of the store.
            await asyncio.sleep(configuration.snapshot.tuning.store_deadline_us / 1e6 + 0.05)
            configuration.apply(offer(PROMPT, revision=1, tenants={"slow": TenantRecord(tier="pro")}))
            batch.set_result(None)

        answering = asyncio.create_task(answer())
        assert (await configuration.load_record("slow", 60_000)).tier == "pro"
        await answering

    async def test_meeting_without_a_store_decides_by_the_default_tier_at_once(self, configuration):
        configuration.apply(offer(revision=1))
        assert (await configuration.load_record("acme")).tier == "free"
        assert configuration.wanted() == ("acme",)


class TestOverridesExpire:
    def override(self, expires_at_us: int) -> Policy:
        held = Override(
            mode=OverrideMode.FORCED_OPEN,
            revision=1,
            expires_at_us=expires_at_us,
            reason="vendor is down",
            actor="ada",
        )
        dependency = Dependency(name="payments", override=held)
        return msgspec.structs.replace(POLICY, dependencies=(dependency,))

    def test_by_server_time_however_wrong_the_pods_clock_is(self):
        now_ns = 5_000_000_000
        ten_years_ns = 10 * 365 * 86_400 * 1_000_000_000
        clock = ServerClock(monotonic_ns=lambda: now_ns, wall_ns=lambda: ten_years_ns)
        clock.observe(1_000_000_000, asked_ns=now_ns - 2_000_000, answered_ns=now_ns)
        configuration = Configuration(environment="production", clock=clock)
        configuration.apply(offer(self.override(1_001_000_000), revision=1))
        assert configuration.override_in_force("payments") is not None
        now_ns += 998_000_000
        assert configuration.override_in_force("payments") is not None
        now_ns += 2_000_000
        assert configuration.override_in_force("payments") is None
        assert configuration.override_in_force("unheard of") is None

    def test_a_slow_answer_does_not_spoil_what_a_quick_one_taught(self):
        clock = ServerClock(monotonic_ns=lambda: 0, wall_ns=lambda: 0)
        clock.observe(1_000_000, asked_ns=0, answered_ns=1_000_000)
        offset_us = clock.offset_us
        clock.observe(1_000_300, asked_ns=0, answered_ns=900_000_000)
        assert clock.offset_us == offset_us

    def test_a_stepped_server_clock_is_followed(self):
        clock = ServerClock(monotonic_ns=lambda: 0, wall_ns=lambda: 0)
        clock.observe(1_000_000, asked_ns=0, answered_ns=1_000_000)
        clock.observe(9_000_000_000, asked_ns=1_000_000, answered_ns=90_000_000)
        assert clock.offset_us > 8_000_000_000


def test_rules_for_descriptors_are_prepared_once_for_a_snapshot():
    head = ConfigHead(epoch=1, revision=1, hash="")
    snapshot = Snapshot(head=head, policy=DESCRIBED_POLICY, source=ConfigSource.HTTP)
    rules = snapshot.descriptor_rules
    assert snapshot.descriptor_rules is rules
    [match] = rules.match("edge", [[("tenant", "acme")]])
    assert match.named == {Means.TENANT: "acme"}


def test_rules_for_descriptors_are_prepared_again_only_if_they_have_changed():
    configuration = Configuration(environment="production")
    configuration.apply(offer(DESCRIBED_POLICY, revision=1))
    rules = configuration.snapshot.descriptor_rules
    configuration.apply(offer(DESCRIBED_POLICY, revision=2, tenants={"acme": TenantRecord(tier="pro")}))
    override = Override(
        mode=OverrideMode.FORCED_OPEN, revision=2, expires_at_us=1, reason="a test", actor="ann"
    )
    configuration.apply_overrides({"payments": override})
    other = msgspec.structs.replace(DESCRIBED_POLICY, dependencies=(Dependency(name="payments"),))
    configuration.apply(offer(other, revision=3))
    assert configuration.snapshot.descriptor_rules is rules
    configuration.apply(offer(msgspec.structs.replace(other, descriptors=()), revision=4))
    assert not configuration.snapshot.descriptor_rules.match("edge", [[("tenant", "acme")]])[0].path
