"""A sidecar reports what became of its permits, and which descriptors it answered."""

from pathlib import Path

import httpx
import redis

from fuseboard import Agent, AgentSettings
from fuseboard.contract.descriptor_tallies import RuleTally, UnmatchedTally
from fuseboard.contract.descriptors import DescriptorDomain, DescriptorRule, DescriptorRules
from fuseboard.contract.sync import PermitCounters
from fuseboard.sidecar import app
from tests.agents.gateways import gateway_running
from tests.agents.published import publish
from tests.agents.servers import POLICY
from tests.waiting import eventually

RULES = DescriptorRules([DescriptorDomain(domain="edge", rules=(DescriptorRule(key="ok", unlimited=True),))])


async def test_heartbeats_have_the_permits_and_the_descriptors(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, POLICY, revision=7)
    with gateway_running() as gateway:
        gateway.publish(POLICY, revision=7)
        settings = AgentSettings(
            url=gateway.url, token="secret", redis_url=redis_url, server="edge-1", state_dir=tmp_path
        )
        async with app.running(settings, app.Options(listen=("127.0.0.1", 0))) as started:
            await eventually(lambda: gateway.beats)
            url = f"http://127.0.0.1:{started.port}"
            async with httpx.AsyncClient(base_url=url) as http:
                answer = await http.post("/v1/calls", json={"dependency": "payments"})
            assert answer.json()["allowed"]
            asked = ((("ok", "1"),), (("other", "x"),))
            matches = RULES.match("edge", asked)
            started.agent.sidecar_figures.descriptors.note(
                "edge", asked, matches, refused=(False, False), shadow=(False, False)
            )
        await eventually(lambda: gateway.beats[-1].leaving)
    assert gateway.beats[-1].permits == PermitCounters(issued=1)
    # A heartbeat that was due may take the part first. A part that is sent again has the same number.
    parts = {beat.descriptors.number: beat.descriptors for beat in gateway.beats if beat.descriptors}
    (part,) = parts.values()
    assert part.rules == (RuleTally("edge", "ok", 1),)
    assert part.unmatched == (UnmatchedTally("edge", "other", 1, ("x",)),)
    assert gateway.beats[0].descriptors is None


async def test_a_pod_that_is_no_sidecar_reports_no_permits(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with gateway_running() as gateway:
        settings = AgentSettings(
            url=gateway.url, token="secret", redis_url=redis_url, server="web-1", state_dir=tmp_path
        )
        async with Agent(settings=settings):
            pass
        await eventually(lambda: gateway.beats and gateway.beats[-1].leaving)
    assert all(beat.permits is None and beat.descriptors is None for beat in gateway.beats)
