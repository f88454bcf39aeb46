"""Several requests in one decision: all are allowed and charged, or none."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Ask, Decision, Misconfigured, Mode, Reason, Subject, blocking
from fuseboard.admission.joint_admission import OwnLimit, Wanted
from fuseboard.batching import batch
from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm, Dimension, FailurePolicy
from fuseboard.subject import NO_SUBJECT, ONE_CALL
from fuseboard.testing import FakeAgent
from fuseboard.without_redis import local_limits
from fuseboard.without_redis.local_limits import LocalLimits
from tests.agents.published import publish
from tests.agents.redis_topologies import Cluster
from tests.agents.servers import PATIENT, POLICY, REQUESTS, TENANTS, configured, running
from tests.waiting import eventually

FIVE = Limit(name="five", limit=5, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW)
PER_IP = Limit(name="per-ip", limit=2, window_ms=3_600_000, burst=2, per=(Dimension.IP,))
EVERYBODY = Limit(name="all", limit=1000, window_ms=3_600_000, burst=1000, service="*")
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(FIVE,)), Tier(name="unlimited")),
    subject_limits=(PER_IP,),
    service_limits=(EVERYBODY,),
    tuning=PATIENT,
)
ADDRESS = Subject(ip="192.0.2.1")


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    publish(limits, RULES, revision=1, tenants=TENANTS)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(lambda: agent.mode is Mode.SHARED)
        yield agent


async def test_all_are_charged_or_none_and_each_says_what_is_left(agent: Agent):
    both = [Ask(tenant="acme"), Ask(subject=ADDRESS)]
    for left in (1, 0):
        decision = await agent.admit_together(both)
        assert decision.allowed
        acme, address = decision.parts
        assert (acme.tenant, address.tenant) == ("acme", "")
        assert {limit.name: limit.remaining for limit in address.limits}["per-ip"] == left
    refused = await agent.admit_together(both)
    acme, address = refused.parts
    assert (refused.allowed, refused.reason, refused.rule) == (False, Reason.QUOTA, "per-ip")
    assert (acme.allowed, address.allowed) == (True, False)
    assert (address.rule, address.retry_after_ms) == ("per-ip", refused.retry_after_ms)
    assert refused.retry_after_ms > 0
    assert {limit.name: limit.remaining for limit in acme.limits}["five"] == 3
    assert (await agent.admit_request("acme", cost=3)).allowed  # the refused one spent nothing


async def test_what_several_share_is_charged_their_sum(agent: Agent):
    assert (await agent.admit_together([Ask(tenant="acme", cost=2), Ask(tenant="acme", cost=2)])).allowed
    refused = await agent.admit_together([Ask(tenant="acme"), Ask(tenant="big"), Ask(tenant="acme")])
    assert [part.allowed for part in refused.parts] == [False, True, False]
    never = await agent.admit_together([Ask(tenant="acme", cost=3), Ask(tenant="acme", cost=3)])
    assert (never.allowed, never.rule, never.retry_after_ms) == (False, "five", 0)
    assert (await agent.admit_request("acme")).allowed


async def test_what_was_not_served_is_given_back_once(agent: Agent):
    whole = [Ask(tenant="acme", cost=5), Ask(subject=ADDRESS, cost=2)]
    for _ in range(2):
        decision = await eventually(
            lambda: agent.admit_together(whole), accept=lambda decision: decision.allowed
        )
        agent.give_back(decision)
        agent.give_back(decision)
    assert (await eventually(lambda: agent.admit_together(whole), accept=lambda one: one.allowed)).allowed
    assert not (await agent.admit_together(whole)).allowed


async def test_a_shadow_limit_counts_what_it_would_have_refused(limits: redis.Redis, redis_url: str):
    trial = msgspec.structs.replace(FIVE, name="trial", limit=1, shadow=True)
    tiers = (Tier(name="free", quotas=(trial,)), Tier(name="unlimited"))
    rules = msgspec.structs.replace(RULES, tiers=tiers)
    async with running(redis_url, configuration=configured(rules)) as server:
        wanted = [Wanted("acme", ONE_CALL, NO_SUBJECT), Wanted("big", ONE_CALL, NO_SUBJECT)]
        for _ in range(3):
            assert (await server.admission.joint.admit(wanted)).allowed
        counted = {
            rule.rule: (rule.asked, rule.refused, rule.shadow) for rule in server.counters.wire().rules
        }
        assert counted["trial"] == (3, 0, 2)


async def test_a_suspended_tenant_stops_all_of_them(agent: Agent):
    refused = await agent.admit_together([Ask(tenant="acme", cost=5), Ask(tenant="late-payer")])
    assert (refused.reason, refused.tenant) == (Reason.SUSPENDED, "late-payer")
    assert [part.allowed for part in refused.parts] == [True, False]
    assert (await agent.admit_request("acme", cost=5)).allowed


async def test_those_without_limits_need_no_question(limits: redis.Redis, redis_url: str):
    rules = msgspec.structs.replace(RULES, service_limits=())
    async with running(redis_url, configuration=configured(rules)) as server:
        wanted = [Wanted("big", ONE_CALL, NO_SUBJECT), Wanted("", ONE_CALL, Subject(user="somebody"))]
        decision = await server.admission.joint.admit(wanted)
        assert (decision.allowed, decision.limits) == (True, ())
        assert server.counters.store_answers == 0


async def test_those_whose_limits_refused_are_counted_and_no_others(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(RULES)) as server:
        wanted = [Wanted("acme", ONE_CALL, NO_SUBJECT), Wanted("", ONE_CALL, ADDRESS)]
        for _ in range(3):
            await server.admission.joint.admit(wanted)
        counted = {row.tenant: (row.allowed, row.refused) for row in server.counters.wire().tenants}
    assert counted == {"acme": (2, 0), "-": (2, 1)}


async def test_a_question_has_no_more_limits_than_its_script_takes(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batch, "MAX_PAIRS", 5)
    async with running(redis_url, configuration=configured(RULES)) as server:
        wanted = [
            [Wanted("acme", ONE_CALL, NO_SUBJECT), Wanted(f"t{number}", ONE_CALL, NO_SUBJECT)]
            for number in range(8)
        ]
        decisions = await asyncio.gather(*[server.admission.joint.admit(one) for one in wanted])
    assert sum(decision.allowed for decision in decisions) == 5
    assert all(decision.mode is Mode.SHARED for decision in decisions)


async def test_without_redis_a_pod_spends_its_shares_of_all_or_none():
    policy = msgspec.structs.replace(
        RULES,
        service_limits=(),
        tiers=(Tier(name="free", quotas=(REQUESTS,)), Tier(name="unlimited")),
        subject_limits=(msgspec.structs.replace(PER_IP, failure_policy=FailurePolicy.FAIL_CLOSED),),
    )
    async with running("redis://127.0.0.1:1", configuration=configured(policy), connected=False) as server:
        admit = server.admission.joint.admit
        acme, address = Wanted("acme", (("calls", 15),), NO_SUBJECT), Wanted("", ONE_CALL, ADDRESS)
        refused = await admit([acme, address])
        assert (refused.reason, refused.mode) == (Reason.STORE_UNAVAILABLE, Mode.LOCAL)
        assert [part.allowed for part in refused.parts] == [True, False]
        assert (await admit([acme])).allowed
        assert [part.rule for part in (await admit([acme])).parts] == ["requests"]


@pytest.mark.parametrize(
    "asks",
    [[], [Ask()], [Ask(tenant="a", cost=0)], [Ask(tenant="a", cost=0, costs={"tokens": -1})],
     [Ask(tenant="a", costs={"calls": 1})], ["acme"], [Ask(tenant=3)],
     [Ask(tenant="a")] * 51, Ask(tenant="a")],
)  # fmt: skip
async def test_wrong_asks_are_refused_at_once(agent: Agent, asks: list[Ask]):
    with pytest.raises(Misconfigured):
        await agent.admit_together(asks)
    with pytest.raises(Misconfigured):
        await FakeAgent().admit_together(asks)


async def test_a_stopped_agent_allows_all_and_a_copy_of_a_decision_charges_nothing(agent: Agent):
    decision = await agent.admit_together([Ask(tenant="acme")])
    copy = pickle.loads(pickle.dumps(decision))  # noqa: S301
    assert (copy.parts, copy.charges) == (decision.parts, ())
    await agent.stop()
    allowed = await agent.admit_together([Ask(tenant="acme"), Ask(tenant="(bad\n")])
    assert (allowed.allowed, len(allowed.parts)) == (True, 2)


def test_threads_and_other_loops_decide_together_too(limits: redis.Redis, redis_url: str):
    publish(limits, RULES, revision=1, tenants=TENANTS)
    agent = blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=None))
    with agent:
        eventually_shared = [Ask(tenant="acme"), Ask(subject=ADDRESS)]
        decision = agent.admit_together(eventually_shared)
        assert len(decision.parts) == 2
        assert len(asyncio.run(agent.aadmit_together(eventually_shared)).parts) == 2
        with pytest.raises(Misconfigured):
            agent.admit_together([])


async def test_the_fake_refuses_all_if_a_test_says_so():
    agent = FakeAgent()
    assert (await agent.admit_together([Ask(tenant="acme"), Ask(tenant="big")])).allowed
    agent.shed("big")
    refused = await agent.admit_together([Ask(tenant="acme"), Ask(tenant="big")])
    assert (refused.reason, [part.allowed for part in refused.parts]) == (Reason.SHED, [True, False])


async def test_on_a_cluster_they_are_never_over_and_nothing_stays_spent(cluster: Cluster):
    cluster.settle()
    cluster.flush()
    rules = msgspec.structs.replace(RULES, tuning=msgspec.structs.replace(PATIENT, store_deadline_us=500_000))
    tenants = {name: TenantRecord(tier="free") for name in "abcd"}
    async with running(cluster.url, configuration=configured(rules, tenants=tenants)) as server:
        joint = server.admission.joint

        def asked(*names: str) -> list[Wanted]:
            return [Wanted(name, ONE_CALL, NO_SUBJECT) for name in names]

        decisions = await asyncio.gather(*[joint.admit(asked(*"abcd")) for _ in range(12)])
        allowed = [decision for decision in decisions if decision.allowed]
        assert allowed
        # A node that answers too late leaves the decision to the pod, which has a share of its own.
        assert sum(not any(charge.local for charge in one.charges) for one in allowed) <= 5
        refused = next(decision for decision in decisions if not decision.allowed)
        assert sum(not part.allowed for part in refused.parts) == 1
        for decision in allowed:
            server.admission.give_back(decision)

        async def whole() -> Decision:
            wanted = [Wanted(name, (("calls", 5),), NO_SUBJECT) for name in "abcd"]
            return await joint.admit(wanted)

        assert (await eventually(whole, accept=lambda decision: decision.allowed)).allowed


async def test_what_is_charged_afterwards_may_pass_the_limit(agent: Agent):
    assert (await agent.admit_request("acme")).allowed
    agent.charge_after([Ask(tenant="acme", cost=321), Ask(subject=ADDRESS, cost=1)])

    async def refused() -> Decision:
        decision = await agent.admit_request("acme")
        agent.give_back(decision)
        return decision

    decision = await eventually(refused, accept=lambda decision: not decision.allowed)
    assert decision.rule == "five"
    left = await agent.admit_request(None, subject=ADDRESS)
    assert {limit.name: limit.remaining for limit in left.limits}["per-ip"] == 0
    with pytest.raises(Misconfigured):
        agent.charge_after([Ask(tenant="acme", cost=0)])


async def test_what_is_no_call_charges_none(limits: redis.Redis, redis_url: str, tmp_path: Path):
    tokens = Limit(name="tokens", limit=10, window_ms=3_600_000, burst=10, measure="tokens")
    tier = Tier(name="free", quotas=(FIVE, tokens))
    publish(limits, msgspec.structs.replace(RULES, tiers=(tier,), default_tier="free"), revision=1)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(lambda: agent.mode is Mode.SHARED)
        ask = Ask(tenant="acme", cost=0, costs={"tokens": 4})
        found = [await agent.admit_together([ask]) for _ in range(3)]
        assert [(one.allowed, one.rule) for one in found] == [(True, ""), (True, ""), (False, "tokens")]
        agent.charge_after([ask])
        left = {limit.name: limit.remaining for limit in (await agent.admit_request("acme")).limits}
        assert (left["five"], left["*/all"]) == (4, 999)


async def test_an_unknown_tenant_is_charged_when_its_record_is_there(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(RULES)) as server:
        arriving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server.configuration.fetch = lambda: arriving
        wanted = [Wanted("new", (("calls", 7),), NO_SUBJECT)]
        server.admission.charging.charge_after(server.admission.joint, wanted)
        arriving.set_result(None)

        async def refused() -> Decision:
            decision = await server.admission.admit_request("new")
            server.admission.give_back(decision)
            return decision

        assert (await eventually(refused, accept=lambda decision: not decision.allowed)).rule == "five"


async def test_without_redis_it_is_charged_to_the_shares_of_the_pod_and_reported_later():
    policy = msgspec.structs.replace(RULES, tiers=(Tier(name="free", quotas=(REQUESTS,)),), service_limits=())
    async with running("redis://127.0.0.1:1", configuration=configured(policy), connected=False) as server:
        wanted = [Wanted("acme", (("calls", 20),), NO_SUBJECT), Wanted("", ONE_CALL, ADDRESS)]
        server.admission.charging.charge_after(server.admission.joint, wanted)
        refused = await server.admission.admit_request("acme")
        assert (refused.allowed, refused.rule, refused.mode) == (False, "requests", Mode.LOCAL)
        alone = server.admission.redis_fallback.allowed_alone()
        assert alone is not None
        assert alone.unreported == 21


def test_threads_and_the_fake_charge_afterwards_too(limits: redis.Redis, redis_url: str):
    publish(limits, RULES, revision=1, tenants=TENANTS)
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=None)) as agent:
        agent.charge_after([Ask(tenant="acme", cost=9)])
        deadline = monotonic() + 20
        while (decision := agent.admit_request("acme")).allowed and monotonic() < deadline:
            agent.give_back(decision)
            sleep(0.01)
        assert not decision.allowed
    fake = FakeAgent()
    fake.charge_after([Ask(tenant="acme", cost=9)])
    assert fake.charged == [Ask(tenant="acme", cost=9)]
    with pytest.raises(Misconfigured):
        fake.charge_after([])


async def test_a_check_says_what_would_be_decided_and_charges_nothing(agent: Agent):
    both = [Ask(tenant="acme", cost=5), Ask(subject=ADDRESS)]
    for _ in range(3):
        checked = await agent.check_together(both)
        assert (checked.allowed, checked.charges) == (True, ())
        assert {limit.name: limit.remaining for limit in checked.parts[0].limits}["five"] == 5
    for forgiving in (agent.finish, agent.give_back):
        forgiving(checked)
    assert (await agent.admit_together(both)).allowed
    refused = await agent.check_together([Ask(tenant="acme"), Ask(subject=ADDRESS)])
    assert (refused.reason, refused.rule, refused.tenant) == (Reason.QUOTA, "five", "acme")
    assert [part.allowed for part in refused.parts] == [False, True]
    assert refused.parts[0].retry_after_ms == refused.retry_after_ms > 0
    assert {limit.name: limit.remaining for limit in refused.parts[1].limits}["per-ip"] == 1
    never = await agent.check_together([Ask(tenant="acme", cost=6)])
    assert (never.rule, never.retry_after_ms) == ("five", 0)
    suspended = await agent.check_together([Ask(tenant="acme"), Ask(tenant="late-payer")])
    assert [part.reason for part in suspended.parts] == [None, Reason.SUSPENDED]
    with pytest.raises(Misconfigured):
        await agent.check_together([])
    await agent.stop()
    assert (await agent.check_together(both)).allowed


async def test_a_check_counts_no_request(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(RULES)) as server:
        wanted = [Wanted("acme", (("calls", 5),), NO_SUBJECT), Wanted("", ONE_CALL, ADDRESS)]
        await asyncio.gather(*[server.admission.joint.check(wanted) for _ in range(20)])
        assert server.counters.store_answers == 1, "one question for all who ask at once"
        assert (await server.admission.joint.admit(wanted)).allowed
        assert not (await server.admission.joint.check(wanted)).allowed
        counted = {row.tenant: (row.allowed, row.refused) for row in server.counters.wire().tenants}
    assert counted == {"acme": (1, 0), "-": (1, 0)}


async def test_a_check_takes_no_count_of_a_shadow_limit(limits: redis.Redis, redis_url: str):
    trial = msgspec.structs.replace(FIVE, name="trial", limit=1, shadow=True)
    tiers = (Tier(name="free", quotas=(trial,)), Tier(name="unlimited"))
    rules = msgspec.structs.replace(RULES, tiers=tiers)
    async with running(redis_url, configuration=configured(rules)) as server:
        joint, wanted = server.admission.joint, [Wanted("acme", ONE_CALL, NO_SUBJECT)]
        for _ in range(3):
            # The check is the first in the question that both share.
            checked, admitted = await asyncio.gather(joint.check(wanted), joint.admit(wanted))
            assert (checked.allowed, admitted.allowed) == (True, True)
        assert {rule.rule: rule.shadow for rule in server.counters.wire().rules}["trial"] == 2


async def test_while_callers_check_a_remembered_refusal_still_answers(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(RULES)) as server:
        joint = server.admission.joint
        spent = [Wanted("acme", (("calls", 5),), NO_SUBJECT)]
        assert (await joint.admit(spent)).allowed
        assert not (await joint.admit(spent)).allowed
        asked = server.counters.store_answers
        other = [Wanted("acme", ONE_CALL, NO_SUBJECT)]
        checking = asyncio.ensure_future(joint.check(other))
        await asyncio.sleep(0)
        assert not (await joint.admit(spent)).allowed
        assert not checking.done(), "its answer was not waited for"
        assert not (await checking).allowed
        assert server.counters.store_answers == asked + 1
        assert not any(
            demand.only_asks
            for known in joint.requests.settlements.refusals.by_counter.values()
            for demand in known
        )


async def test_a_check_on_a_cluster_adds_up_what_is_asked_of_each_tenant(cluster: Cluster):
    cluster.settle()
    cluster.flush()
    tenants = {name: TenantRecord(tier="free") for name in "ab"}
    async with running(cluster.url, configuration=configured(RULES, tenants=tenants)) as server:
        joint = server.admission.joint

        def asked(*costs: tuple[str, int]) -> list[Wanted]:
            return [Wanted(name, (("calls", cost),), NO_SUBJECT) for name, cost in costs]

        whole = asked(("a", 3), ("b", 5), ("a", 2))

        async def allowed() -> Decision:
            return await joint.check(whole)

        checked = await eventually(allowed, accept=lambda decision: decision.mode is Mode.SHARED)
        assert (checked.allowed, checked.charges) == (True, ())
        assert [limit.remaining for limit in checked.parts[1].limits if limit.name == "five"] == [5]
        over = await joint.check(asked(("a", 3), ("b", 5), ("a", 3)))
        assert [part.allowed for part in over.parts] == [False, True, False]
        assert (await joint.admit(whole)).allowed
        refused = await joint.check(asked(("b", 1), ("", 1)))
        assert (refused.rule, [part.allowed for part in refused.parts]) == ("five", [False, True])


def test_a_look_at_the_shares_of_a_pod_keeps_and_drops_no_counter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_limits, "MAX_COUNTERS", 1)
    limits = LocalLimits(lambda: 1)
    share = msgspec.structs.replace(FIVE, failure_policy=FailurePolicy.LOCAL_SHARE)
    first, second = (Demand((LimitRef(share, key),), (5,)) for key in ("first", "second"))
    assert limits.take(first, 1.0, 1000.0) is None
    for _ in range(2):
        assert limits.look(second, 1.0, 1000.0) is None
    assert limits.take(first, 1.0, 1000.0) is not None


def test_threads_other_loops_and_the_fake_check_too(limits: redis.Redis, redis_url: str):
    publish(limits, RULES, revision=1, tenants=TENANTS)
    asks = [Ask(tenant="acme"), Ask(subject=ADDRESS)]
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=None)) as agent:
        assert len(agent.check_together(asks).parts) == 2
        assert len(asyncio.run(agent.acheck_together(asks)).parts) == 2
    fake = FakeAgent()
    fake.shed("acme", times=1)
    for _ in range(2):
        checked = asyncio.run(fake.check_together(asks))
        assert (checked.reason, [part.allowed for part in checked.parts]) == (Reason.SHED, [False, True])
    assert fake.refusals == []
    assert not asyncio.run(fake.admit_together(asks)).allowed


SLOW_PATH = Limit(name="slow-path", limit=3, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW)


def own(key: str, cost: int = 1) -> Ask:
    # Each ask has a new object: equal limits are one limit.
    return Ask(limit=msgspec.structs.replace(SLOW_PATH), key=key, cost=cost)


async def test_a_limit_of_the_caller_decides_with_the_others(agent: Agent, limits: redis.Redis):
    both = [own("/reports", 2), Ask(tenant="acme")]
    assert (await agent.check_together(both)).allowed
    allowed = await agent.admit_together(both)
    assert [(limit.name, limit.remaining) for limit in allowed.parts[0].limits] == [("slow-path", 1)]
    refused = await agent.admit_together(both)
    assert (refused.rule, [part.allowed for part in refused.parts]) == ("slow-path", [False, True])
    assert (await agent.admit_request("acme", cost=4)).allowed, "the refused one spent nothing"
    assert (await agent.admit_together([own("/exports", 3)])).allowed, "each key has its own counter"
    agent.give_back(allowed)
    again = await eventually(
        lambda: agent.admit_together([own("/reports", 3)]), accept=lambda one: one.allowed
    )
    agent.charge_after([own("/late", 9)])
    late = await eventually(lambda: agent.check_together([own("/late")]), accept=lambda one: not one.allowed)
    assert (again.allowed, late.rule) == (True, "slow-path")
    assert len(limits.keys(b"*own:slow-path")) == 3


async def test_a_quota_of_the_same_name_has_only_its_own_figures(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(RULES)) as server:
        mine = Wanted("", (("calls", 2),), NO_SUBJECT, OwnLimit(FIVE, "/reports"))
        for _ in range(3):
            await server.admission.joint.admit([mine])
        assert (await server.admission.joint.admit([Wanted("acme", ONE_CALL, NO_SUBJECT)])).allowed
        counters = server.counters.wire()
    assert [(rule.asked, rule.refused) for rule in counters.rules if rule.rule == "five"] == [(1, 0)]
    counted = {row.tenant: (row.allowed, row.refused) for row in counters.tenants}
    assert counted == {"acme": (1, 0), "-": (2, 1)}


async def test_limits_of_the_caller_are_counted_without_redis_too():
    share = msgspec.structs.replace(SLOW_PATH, failure_policy=FailurePolicy.LOCAL_SHARE)
    async with running("redis://127.0.0.1:1", configuration=configured(RULES), connected=False) as server:
        wanted = [Wanted("", (("calls", 2),), NO_SUBJECT, OwnLimit(share, "/reports"))]
        assert (await server.admission.joint.admit(wanted)).allowed
        refused = await server.admission.joint.admit(wanted)
        assert (refused.rule, refused.mode) == ("slow-path", Mode.LOCAL)


@pytest.mark.parametrize(
    "wrong",
    [Ask(key="x"), Ask(limit=SLOW_PATH), Ask(limit=SLOW_PATH, key="x" * 1001),
     Ask(limit=SLOW_PATH, key="x", tenant="acme"), Ask(limit=SLOW_PATH, key="x", subject=ADDRESS),
     Ask(limit=msgspec.structs.replace(SLOW_PATH, limit=-1), key="x"),
     Ask(limit=msgspec.structs.replace(SLOW_PATH, burst=5), key="x"),
     Ask(limit=msgspec.structs.replace(SLOW_PATH, per=[]), key="x"),
     Ask(limit=PER_IP, key="x"), Ask(limit={"limit": 3}, key="x"), Ask(limit=SLOW_PATH, key=3)],
)  # fmt: skip
async def test_a_wrong_limit_of_the_caller_is_refused_at_once(wrong: Ask):
    with pytest.raises(Misconfigured):
        await FakeAgent().admit_together([wrong])


async def test_two_rules_of_one_counter_are_refused_at_once(agent: Agent):
    looser = msgspec.structs.replace(SLOW_PATH, limit=100)
    with pytest.raises(Misconfigured, match="slow-path"):
        await agent.admit_together([Ask(limit=looser, key="x"), own("x", 4)])
    assert (await agent.admit_together([Ask(limit=looser, key="x"), own("y", 3)])).allowed


async def test_a_key_that_is_not_unicode_is_counted(agent: Agent):
    assert (await agent.admit_together([own("\ud800", 3)])).allowed
    assert (await agent.admit_together([own("\ud800")])).rule == "slow-path"


async def test_the_fake_allows_limits_of_the_caller():
    assert (await FakeAgent().admit_together([own("/reports", 9)])).allowed
    assert (await FakeAgent().check_together([own("/reports", 9)])).allowed
