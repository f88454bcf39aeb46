"""A sidecar for a node has no parts that protect one pod."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings
from fuseboard.cli import main
from fuseboard.contract.policy import Policy
from fuseboard.contract.protection import Bulkhead, CallProtection, LocalRate, PodProtection
from fuseboard.contract.words import WhenFull
from fuseboard.errors import Refused
from fuseboard.sidecar import app
from tests.agents.gateways import gateway_running
from tests.agents.published import decides_by, publish
from tests.agents.servers import POLICY
from tests.waiting import eventually

#: One slot for each tier, and no queue.
ONE_SLOT = CallProtection(bulkhead=Bulkhead(max_concurrent=3, when_full=(WhenFull.ABORT,) * 3))
ONE_CALL = CallProtection(local_rate=LocalRate(limit=1))


def protected(protection: CallProtection) -> Policy:
    payments = msgspec.structs.replace(POLICY.dependencies[0], protection=protection)
    return msgspec.structs.replace(POLICY, dependencies=(payments,), protection=PodProtection())


def settings(redis_url: str, folder: Path, **more: Any) -> AgentSettings:
    return AgentSettings(redis_url=redis_url, server="node-1", state_dir=folder / "state", **more)


@pytest.mark.parametrize("protection", [ONE_SLOT, ONE_CALL], ids=["bulkhead", "local-rate"])
@pytest.mark.parametrize("serves_node", [True, False])
async def test_calls_of_other_pods_of_the_node_take_no_slot_and_no_rate(
    limits: redis.Redis, redis_url: str, tmp_path: Path, protection: CallProtection, serves_node: bool
) -> None:
    publish(limits, protected(protection), revision=7)
    async with Agent(settings=settings(redis_url, tmp_path, serves_node=serves_node)) as agent:
        await eventually(decides_by(agent, 7))
        await agent.admit_call("payments")
        if serves_node:
            await agent.admit_call("payments")
            assert agent.queue_timeout_s("payments") is None
            # Nothing is measured, so nothing is shed, and the agent is ready.
            assert agent.enter_request("acme", method="GET", path="/") is None
            assert agent.ready()
            assert agent.resilience()["dependencies"] == {}
        else:
            with pytest.raises(Refused):
                await agent.admit_call("payments")
            assert agent.enter_request("acme", method="GET", path="/") is not None


async def test_a_newer_configuration_brings_no_protection_of_a_pod(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, POLICY, revision=7)
    async with Agent(settings=settings(redis_url, tmp_path, serves_node=True)) as agent:
        await eventually(decides_by(agent, 7))
        publish(limits, protected(ONE_CALL), revision=8)
        await eventually(lambda: agent.configuration.snapshot.head.revision == 8)
        for _ in range(2):
            await agent.admit_call("payments")


@pytest.mark.parametrize("serves_node", [True, False])
async def test_heartbeats_say_that_the_agent_serves_a_node(
    limits: redis.Redis, redis_url: str, tmp_path: Path, serves_node: bool
) -> None:
    with gateway_running() as gateway:
        more = {"url": gateway.url, "token": "secret", "serves_node": serves_node}
        async with Agent(settings=settings(redis_url, tmp_path, **more)):
            await eventually(lambda: gateway.beats)
        assert {beat.serves_node for beat in gateway.beats} == {serves_node}
        assert all(beat.load is None for beat in gateway.beats)


def test_the_option_is_passed_to_the_agent(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    passed: list[bool] = []
    monkeypatch.setattr(app, "run", lambda settings, options: passed.append(settings.serves_node))
    unix = ["--listen", "off", "--unix", str(tmp_path / "sock")]
    assert main(["sidecar", *unix, "--shared"]) == 0
    assert main(["sidecar", *unix]) == 0
    assert passed == [True, False]
    assert main(["sidecar", "--no-token", "--shared"]) == 2
    assert "--shared needs --unix" in capsys.readouterr().err
