"""Requests that are decided from a fleet lease: the short way checks what the long one does."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Misconfigured
from fuseboard.contract.words import Mode
from tests.agents.published import publish
from tests.agents.servers import PATIENT, POLICY, TENANTS
from tests.agents.test_fleet_leases import HOT
from tests.waiting import eventually

#: ``acme`` is asked for often, and its bucket is nearly full.
LEASED = msgspec.structs.replace(
    POLICY,
    tiers=(msgspec.structs.replace(POLICY.tiers[0], quotas=(HOT,)), POLICY.tiers[1]),
    tuning=PATIENT,
)

WRONG: tuple[dict[str, Any], ...] = (
    {"wait_s": -1},
    {"cost": 0},
    {"cost": True},
    {"costs": {"calls": 1}},
    {"subject": "ip"},
)


async def leased_decision(agent: Agent) -> Any:
    return await eventually(
        lambda: agent.admit_request("acme"), "a lease", every_s=0.001, accept=lambda decision: decision.leased
    )


async def test_a_leased_request_is_checked_like_any_other(
    limits: redis.Redis, redis_url: str, tmp_path: Path
):
    publish(limits, LEASED, revision=1, tenants=TENANTS)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        decision = await leased_decision(agent)
        assert (decision.allowed, decision.tenant, decision.mode) == (True, "acme", Mode.SHARED)
        for wrong in (
            {"wait_s": -1},
            {"cost": 0},
            {"cost": True},
            {"costs": {"calls": 1}},
            {"subject": "ip"},
        ):
            await leased_decision(agent)
            with pytest.raises(Misconfigured):
                await agent.admit_request("acme", **wrong)
        with pytest.raises(Misconfigured, match="tenant must be text"):
            await agent.admit_request(["acme"])  # type: ignore[arg-type]

        def in_another_loop() -> None:
            with pytest.raises(Misconfigured, match="belongs to the event loop"):
                asyncio.run(agent.admit_request("acme"))

        await leased_decision(agent)
        await asyncio.to_thread(in_another_loop)


async def test_a_defect_of_a_lease_fails_no_request(limits: redis.Redis, redis_url: str, tmp_path: Path):
    publish(limits, LEASED, revision=1, tenants=TENANTS)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await leased_decision(agent)
        with patch.object(agent._runtime.admission, "spend_by_name", side_effect=ZeroDivisionError):
            assert (await agent.admit_request("acme")).allowed
        assert agent.defects == 1
