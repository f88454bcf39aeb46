"""A limit counts a measure in which calls state no cost: people learn of it."""

import logging

import pytest
import redis
from msgspec.structs import replace

from fuseboard.admission.admission import Admission
from fuseboard.contract.policy import Dependency, TenantRecord, Tier
from fuseboard.contract.sync import Uncharged
from tests.agents.limit_kinds import bucket
from tests.agents.servers import PATIENT, POLICY, configured, give, running

TOKENS = bucket(1_000, name="model-tokens", measure="tokens")
MONEY = bucket(1_000, name="spend", measure="micro_usd", dependency="llm")
MODEL = Dependency(name="llm", vendor_limits=(TOKENS, bucket(100, name="calls")))
PLAIN = Dependency(name="mail", vendor_limits=(bucket(100, name="calls"),))
WITH_MODEL = replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(MONEY,)),),
    dependencies=(MODEL, PLAIN),
    tuning=PATIENT,
)


def said(admission: Admission) -> list[tuple[str, str]]:
    return [(one.dependency, one.measure) for one in admission.uncharged()]


async def test_a_pod_warns_once_and_reports_it_until_a_call_states_a_cost(
    limits: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "fuseboard.limits")
    configuration = configured(WITH_MODEL, tenants={"acme": TenantRecord(tier="free")})
    async with running(redis_url, configuration=configuration) as server:
        admission = server.admission
        await admission.admit_call("mail")
        assert (said(admission), caplog.messages) == ([], [])
        for _ in range(3):
            await admission.admit_call("llm")
        assert admission.uncharged() == (Uncharged(dependency="llm", measure="tokens"),)
        assert [line for line in caplog.messages if "tokens" in line] == [
            "limits.not_counted dependency=llm limit=model-tokens: a call stated no cost in tokens, so the"
            " limit did not count it: pass costs={'tokens': estimate}"
        ]
        await admission.admit_call("llm", tenant="acme", costs={"tokens": 0})
        assert said(admission) == [("llm", "micro_usd")]
        # The limits have changed: what calls state is learned again, without a second warning.
        give(configuration, replace(WITH_MODEL, default_tier="free"), revision=8, tenants={})
        assert said(admission) == []
        await admission.admit_call("llm")
        assert said(admission) == [("llm", "tokens")]
        assert len(caplog.messages) == 2


async def test_costs_that_differ_from_call_to_call_are_charged_exactly(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(WITH_MODEL)) as server:
        spent = 0
        for tokens in (101, 33, 77, 250, 19, 400):
            spent += tokens
            permit = await server.admission.admit_call("llm", costs={"tokens": tokens})
            left = {limit.name: limit.remaining for limit in permit.decision.limits}["model-tokens"]
            assert left is not None
            assert 1_000 - spent <= left <= 1_000
