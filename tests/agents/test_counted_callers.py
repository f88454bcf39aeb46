"""Limits by address and by endpoint count one caller and one endpoint once, whatever texts they have."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Subject
from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.protection import Route
from fuseboard.contract.refusal_samples import DigestKey, digest_of
from fuseboard.contract.words import Algorithm, Dimension
from fuseboard.protection.signals import OTHER, RouteLatencies
from tests.agents.published import decides_by, publish
from tests.agents.servers import PATIENT, POLICY
from tests.waiting import eventually

WINDOW = {"window_ms": 3_600_000, "algorithm": Algorithm.SLIDING_WINDOW}
PER_IP = Limit(name="per-ip", limit=2, per=(Dimension.IP,), **WINDOW)
REPORTS = Limit(name="reports", limit=2, endpoints=("GET /reports*",), **WINDOW)
EACH = Limit(name="each", limit=2, per=(Dimension.ENDPOINT,), **WINDOW)
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(
        Tier(name="free", quotas=(PER_IP,)),
        Tier(name="reports", quotas=(REPORTS,)),
        Tier(name="each", quotas=(EACH,)),
    ),
    subject_limits=(PER_IP,),
    tuning=PATIENT,
)
TENANTS = {name: TenantRecord(tier=name) for name in ("reports", "each")}
ONE_IPV4 = (
    "192.0.2.7",
    "::ffff:192.0.2.7",
    "::FFFF:C000:0207",
    "192.0.2.7:5678",
    " 192.0.2.7 ",
    "192.0.2.007",
)
ONE_IPV6 = ("2001:db8:7:1::1", "2001:DB8:7:1::2", "[2001:db8:7:1::3]:443", "2001:db8:7:1:0:0:0:4%eth0")


async def pod(redis_url: str, folder: Path) -> AsyncIterator[Agent]:
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=folder)) as agent:
        await eventually(decides_by(agent, 1))
        yield agent


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    publish(limits, RULES, revision=1, tenants=TENANTS)
    async for one in pod(redis_url, tmp_path):
        yield one


async def allowed(agent: Agent, tenant: str | None, subjects: list[Subject]) -> list[bool]:
    return [(await agent.admit_request(tenant, subject=subject)).allowed for subject in subjects]


@pytest.mark.parametrize("texts", [ONE_IPV4, ONE_IPV6])
@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_all_texts_of_an_address_spend_one_limit(
    agent: Agent, tenant: str | None, texts: tuple[str, ...]
):
    found = await allowed(agent, tenant, [Subject(ip=text) for text in texts])
    assert found == [True, True, *([False] * (len(texts) - 2))]


async def test_networks_hosts_and_garbage_have_their_own_counters(agent: Agent):
    others = ["2001:db8:7:2::1", "192.0.2.8", "shop.example", "not an address", "x" * 200]
    assert all(await allowed(agent, None, [Subject(ip=text) for text in others]))


async def test_the_environment_sets_the_prefix(limits: redis.Redis, redis_url: str, tmp_path: Path):
    policy = msgspec.structs.replace(RULES, tuning=msgspec.structs.replace(PATIENT, ipv6_prefix=48))
    publish(limits, policy, revision=1, tenants=TENANTS)
    async for agent in pod(redis_url, tmp_path):
        found = await allowed(agent, None, [Subject(ip=f"2001:db8:7:{n:x}::1") for n in range(3)])
        assert found == [True, True, False]
        assert await allowed(agent, None, [Subject(ip="2001:db8:8::1")]) == [True]


async def test_a_sample_of_a_refusal_has_the_digest_of_the_network(agent: Agent):
    key = DigestKey(key=bytes(32))
    agent._runtime.refusal_samples.take(key)
    assert not all(await allowed(agent, None, [Subject(ip=text) for text in ONE_IPV6]))
    sent = agent._runtime.refusal_samples.drain()
    assert {one.ip for one in sent} == {digest_of(key.key, "ip", "2001:db8:7:1::/64")}


async def test_head_spends_the_limit_of_get(agent: Agent):
    names = ["GET /reports/{id}", "HEAD /reports/{id}", "head /reports/{id}", "GET /reports/{id}"]
    assert await allowed(agent, "reports", [Subject(endpoint=name) for name in names]) == [
        True,
        True,
        False,
        False,
    ]
    assert await allowed(agent, "reports", [Subject(endpoint="POST /reports")] * 3) == [True] * 3


async def test_a_limit_of_each_endpoint_counts_head_with_get(agent: Agent):
    names = ["HEAD /a", "GET /a", "HEAD /a", "GET /a", "POST /a", "GET /b"]
    found = await allowed(agent, "each", [Subject(endpoint=name) for name in names])
    assert found == [True, True, False, False, True, True]


def test_the_routes_of_the_protection_use_the_same_patterns():
    regular = "GET /^orders/(?P<pk>[0-9]+)/$"
    routes = RouteLatencies((Route(pattern=regular, sla_ms=1), Route(pattern="GET /reports*", sla_ms=1)))
    found = [
        routes.of("GET /orders/7/", regular),
        routes.of("HEAD /orders/7/", regular.replace("GET", "HEAD")),
        routes.of("HEAD /reports/7"),
        routes.of("get /reports"),
        routes.of("POST /reports"),
        routes.of("GET /orders/7/"),
    ]
    assert [route.pattern for route in found] == [regular, regular, *["GET /reports*"] * 2, OTHER, OTHER]
