"""A flood of tenants and addresses: memory stays bounded, and what was spent stays spent."""

import asyncio
import weakref
from typing import cast

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Subject
from fuseboard.admission.joint_admission import Wanted
from fuseboard.batching.domains import LimitDomain, SubjectDemands, demand_of
from fuseboard.batching.kept_demands import KeptDemands
from fuseboard.breaker import stated_measures
from fuseboard.configuration.current_configuration import MIN_RECORDS, WANTED_TENANTS
from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm, Dimension, Mode, Outcome, Reason
from fuseboard.subject import NO_SUBJECT, ONE_CALL
from tests.agents.published import publish
from tests.agents.servers import PATIENT, POLICY, REQUESTS, Server, configured, running
from tests.waiting import eventually

FIVE = Limit(name="five", limit=5, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW)
AT_ONCE = Limit(name="at-once", limit=1, window_ms=3_600_000, algorithm=Algorithm.CONCURRENCY)
PER_IP = Limit(name="per-ip", limit=2, window_ms=3_600_000, burst=2, per=(Dimension.IP,))
FLOOD = 600
TENANTS = {f"t{number}": TenantRecord(tier="free") for number in range(FLOOD)} | {
    "acme": TenantRecord(tier="free"),
    "slow": TenantRecord(tier="slots"),
}
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(FIVE,)), Tier(name="slots", quotas=(AT_ONCE,))),
    subject_limits=(PER_IP,),
    tuning=PATIENT,
)
MOST = 100


async def flood(server: Server) -> None:
    """Each tenant and each address asks once, alone and with another one, and with its own costs."""
    admission = server.admission
    for number in range(FLOOD):
        tenant, address = f"t{number}", Subject(ip=f"192.0.{number // 250}.{number % 250}")
        await admission.admit_request(tenant)
        await admission.admit_request(None, subject=address)
        await admission.admit_request("t0", 1, costs={"tokens": number})
        await admission.joint.admit([Wanted(tenant, ONE_CALL, NO_SUBJECT), Wanted("", ONE_CALL, address)])


async def test_a_flood_keeps_no_more_than_the_most_and_changes_no_decision(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, configuration=configured(RULES, tenants=TENANTS)) as server:
        admission, domains = server.admission, server.admission.joint.requests.domains
        domains.most_subjects = MOST
        assert (await admission.admit_request("acme", 5)).allowed
        held = await admission.admit_request("slow")
        await flood(server)
        assert len(domains._asked) == MOST
        assert max(len(subject._demands) for subject in domains._asked.values()) <= domains.most_demands
        assert len(admission.joint.requests.lanes) <= domains.most_lanes
        assert len(admission.joint.known) <= domains.most_demands
        assert (await admission.admit_request("acme")).rule == "five"
        assert (await admission.admit_request("slow")).rule == "at-once"
        admission.finish(held)
        again = await eventually(
            lambda: admission.admit_request("slow"), accept=lambda decision: decision.allowed
        )
        assert again.mode is Mode.SHARED


async def test_records_counts_and_refusals_follow_the_settings(limits: redis.Redis, redis_url: str):
    publish(limits, RULES, revision=7, tenants=TENANTS)
    settings = AgentSettings(redis_url=redis_url, server="shop-1", most_subjects=MOST)
    async with Agent(settings=settings) as agent:
        await eventually(lambda: agent.mode is Mode.SHARED)
        runtime = agent._runtime
        for number in range(3 * MOST):
            assert (await agent.admit_request(f"t{number}", 5)).allowed
            assert (await agent.admit_request(f"t{number}")).rule == "five"
        records = runtime.configuration.snapshot.tenants
        for number in range(2 * MIN_RECORDS):
            records.put(f"x{number}", None)
        assert len(records) <= MIN_RECORDS
        assert len(runtime.counters.by_tenant()) <= MOST
        assert runtime.admission.joint.requests.settlements.refusals._size <= MOST
        assert len(runtime.inbound.priorities.of) <= MOST
        assert (await agent.admit_request("t0")).rule == "five"


@pytest.mark.parametrize("count", [5 * MOST, 3 * WANTED_TENANTS])
async def test_more_tenants_at_once_than_the_most_are_decided_by_their_own_records(
    limits: redis.Redis, redis_url: str, count: int
):
    suspended = {f"t{number}": TenantRecord(tier="free", suspended=True) for number in range(count)}
    publish(limits, RULES, revision=7, tenants=suspended)
    async with Agent(settings=AgentSettings(redis_url=redis_url, most_subjects=MOST)) as agent:
        await eventually(lambda: agent.mode is Mode.SHARED)
        decisions = await asyncio.gather(*(agent.admit_request(tenant) for tenant in suspended))
        assert {decision.reason for decision in decisions} == {Reason.SUSPENDED}


async def test_costs_that_change_with_each_call_fill_no_memory_whoever_asks(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, configuration=configured(RULES, tenants=TENANTS)) as server:
        admission, domains = server.admission, server.admission.joint.requests.domains
        domains._kept.most = MOST
        assert (await admission.admit_request("acme", 5)).allowed
        for number in range(FLOOD):
            await admission.admit_request(f"t{number % 50}", 1, costs={"tokens": number})
            permit = await admission.admit_call(f"d{number % 50}", "", 1, costs={f"m{number}": 2})
            admission.report(permit, Outcome.NEUTRAL)
        breakers = admission.calls.breakers.values()
        kept = [one._demands for one in (*domains._asked.values(), *breakers)]
        assert sum(map(len, (*kept, *[breaker._refs for breaker in breakers]))) <= MOST
        assert (await admission.admit_request("acme")).rule == "five"


def test_demands_of_rules_that_are_gone_are_not_kept():
    kept = KeptDemands()
    subject = SubjectDemands(cast(LimitDomain, None), RULES, kept, MOST)
    subject.demand((("calls", 2),), NO_SUBJECT, lambda: demand_of([], ()))
    gone = weakref.ref(subject)
    del subject
    assert gone() is None


async def test_measures_that_change_with_each_call_fill_no_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stated_measures, "MAX_MEASURES", 10)
    async with running("redis://127.0.0.1:1", configuration=configured(RULES), connected=False) as server:
        for number in range(50):
            server.admission.calls.breakers["payments"].demand(((f"m{number}", 1),))
        assert len(server.admission.calls.breakers["payments"].measures._stated) <= 10


async def test_a_flood_without_redis_forgets_no_share_that_is_spent():
    # No call leaves the window, however long the flood takes.
    daily = msgspec.structs.replace(REQUESTS, window_ms=86_400_000)
    policy = msgspec.structs.replace(RULES, tiers=(Tier(name="free", quotas=(daily,)), Tier(name="slots")))
    configuration = configured(policy, tenants=TENANTS)
    async with running("redis://127.0.0.1:1", configuration=configuration, connected=False) as server:
        admission = server.admission
        admission.joint.requests.domains.most_subjects = MOST
        while (await admission.admit_request("acme")).allowed:
            pass
        await flood(server)
        refused = await admission.admit_request("acme")
        assert (refused.allowed, refused.mode) == (False, Mode.LOCAL)
