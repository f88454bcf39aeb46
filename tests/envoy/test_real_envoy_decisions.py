"""The real Envoy asks a sidecar: over HTTP/1.1 by its own bridge, and over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import redis
import yaml

from fuseboard import AgentSettings
from fuseboard.contract import keys
from fuseboard.contract.policy import Policy
from fuseboard.envoy.grpc_server import GrpcListener
from fuseboard.sidecar.app import Options, Running, running
from tests.agents.published import decides_by, publish
from tests.agents.servers import TENANTS
from tests.agents.test_local_breaker import held_open
from tests.envoy.conftest import policy_of
from tests.envoy.real_envoy import Application, Envoy, application, config_of, needs_envoy, serving
from tests.envoy.rules import (
    ACME,
    CALLS_ERROR,
    CALLS_OK,
    CALLS_OVER,
    DAY_S,
    ERROR,
    OK,
    OVER,
    PATIENTLY,
    daily,
    policy,
)
from tests.envoy.samples import sample
from tests.waiting import eventually

pytestmark = needs_envoy


class Stack:
    """Envoys in front of one application, each with a sidecar."""

    def __init__(self, app: Application, envoys: list[Envoy], sidecars: list[Running]) -> None:
        self.app, self.envoys, self.sidecars = app, envoys, sidecars
        self.envoy = envoys[0]

    async def get(self, **headers: str) -> Any:
        return await self.envoy.http.get("/", headers=ACME | headers)


Stacked = Callable[..., AbstractAsyncContextManager[Stack]]


@pytest.fixture(params=["unix", "grpc"])
def stacked(request: Any, limits: redis.Redis, redis_url: str, tmp_path: Path) -> Stacked:
    """Publishes a policy, and starts Envoys with what ``fuseboard envoy-config`` prints."""

    @asynccontextmanager
    async def start(policy: Policy, *options: str, envoys: int = 1) -> AsyncIterator[Stack]:
        publish(limits, policy, revision=7, tenants=dict(TENANTS))
        async with AsyncExitStack() as stack:
            app = await stack.enter_async_context(application())
            proxies, sidecars = [], []
            for number in range(envoys):
                folder = tmp_path / f"edge-{number}"
                folder.mkdir()
                settings = AgentSettings(redis_url=redis_url, server=folder.name, state_dir=folder / "state")
                path = str(folder / "socket")
                if request.param == "unix":
                    started = running(settings, Options(listen=None, envoy_unix=path))
                    where = ("--unix", path)
                else:
                    started = running(settings, Options(listen=None, envoy_grpc=GrpcListener(address=path)))
                    where = ("--grpc", f"unix:{path}")
                sidecar = await stack.enter_async_context(started)
                await eventually(decides_by(sidecar.agent, 7))
                sidecars.append(sidecar)
                config = config_of(
                    *("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
                    *("--upstream", f"127.0.0.1:{app.port}", *where, *PATIENTLY, *options),
                )
                proxies.append(await stack.enter_async_context(serving(config, folder / "envoy")))
            yield Stack(app, proxies, sidecars)

    return start


async def test_a_tenant_over_its_quota_gets_429_with_our_headers_and_body(stacked: Stacked) -> None:
    async with stacked(policy(daily(2))) as stack:
        answers = [await stack.get() for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [answer.text for answer in answers[:2]] == ["served"] * 2
        refused = answers[2]
        assert refused.headers["content-type"] == "application/problem+json"
        assert 0 < int(refused.headers["retry-after"]) <= DAY_S
        assert refused.headers["ratelimit-policy"].startswith('"calls";q=2;')
        assert (refused.json()["status"], refused.json()["reason"]) == (429, "quota")
        assert stack.app.served == 2
        assert await stack.envoy.counters(OK, OVER, ERROR, CALLS_OK) == (2, 1, 0, 3)
        # The log reports two calls, and gives the permit of the refused request back.
        await eventually(lambda: len(stack.sidecars[0].sidecar.permits) == 0)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("on", {"ratelimit-policy": '"calls";q=2;w=86400', "ratelimit": '"calls";r=1'}),
        ("legacy", {"ratelimit-limit": "2", "ratelimit-remaining": "1"}),
        ("off", {}),
    ],
)
async def test_allowed_answers_show_what_is_left(stacked: Stacked, word: str, found: dict[str, str]) -> None:
    edge = f"headers: {word}\n{sample('# edge.yaml')}"
    async with stacked(policy_of(sample("# calls.yaml"), edge, policy=policy(daily(2)))) as stack:
        headers = (await stack.get()).headers
        shown = {name: value for name, value in headers.items() if name.startswith("ratelimit")}
        reset = shown.pop("ratelimit-reset", "0")
        assert shown == found
        assert 0 <= int(reset) <= DAY_S


async def test_a_breaker_that_refuses_answers_503_and_nothing_is_spent(
    stacked: Stacked, limits: redis.Redis
) -> None:
    rules = policy(daily(3))
    async with stacked(rules) as stack:
        assert (await stack.get()).status_code == 200
        # An operator holds the breaker open.
        publish(limits, held_open(rules, 600), revision=8, tenants=dict(TENANTS))
        await eventually(decides_by(stack.sidecars[0].agent, 8))
        for _ in range(5):
            refused = await stack.get()
            assert (refused.status_code, refused.json()["reason"]) == (503, "forced_open")
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) > 0
            assert "x-envoy-ratelimited" not in refused.headers
        # The operator resets it.
        limits.set(keys.override("production", "payments"), "none 0 9")
        publish(limits, rules, revision=9, tenants=dict(TENANTS))
        await eventually(decides_by(stack.sidecars[0].agent, 9))
        answers = [(await stack.get()).status_code for _ in range(3)]
        assert answers == [200, 200, 429]
        assert stack.app.served == 3
        assert (await stack.envoy.counters(CALLS_OVER, CALLS_ERROR, ERROR)) == (5, 0, 0)


async def test_a_client_of_grpc_can_tell_a_spent_quota_from_an_open_breaker(
    stacked: Stacked, limits: redis.Redis
) -> None:
    rules = policy(daily(1))
    async with stacked(rules) as stack:

        async def call() -> httpx.Headers:
            rpc = ACME | {"content-type": "application/grpc", "te": "trailers"}
            answer = await stack.envoy.http.post("/shop.Orders/Get", headers=rpc)
            assert answer.status_code == 200
            return answer.headers

        stack.app.headers = {"content-type": "application/grpc", "grpc-status": "0"}
        assert (await call())["grpc-status"] == "0"
        refused = await call()
        assert refused["grpc-status"] == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        assert refused["content-type"] == "application/grpc"
        assert "is spent" in refused["grpc-message"]
        publish(limits, held_open(rules, 600), revision=8, tenants=dict(TENANTS))
        await eventually(decides_by(stack.sidecars[0].agent, 8))
        refused = await call()
        assert refused["grpc-status"] == str(grpc.StatusCode.UNAVAILABLE.value[0])
        assert refused["content-type"] == "application/grpc"
        assert stack.app.served == 1


async def test_the_next_request_obeys_an_edited_quota(stacked: Stacked, limits: redis.Redis) -> None:
    async with stacked(policy(daily(1))) as stack:
        assert [(await stack.get()).status_code for _ in range(2)] == [200, 429]
        publish(limits, policy(daily(3)), revision=8, tenants=dict(TENANTS))
        await eventually(decides_by(stack.sidecars[0].agent, 8))
        assert [(await stack.get()).status_code for _ in range(3)] == [200, 200, 429]


async def test_tokens_are_checked_before_a_call_and_charged_after_it(stacked: Stacked) -> None:
    async with stacked(policy(daily(100, "tokens")), "--tokens-header", "x-tokens") as stack:
        # A response without the header is not charged.
        assert (await stack.get()).status_code == 200
        stack.app.headers = {"x-tokens": "60"}
        assert (await stack.get()).status_code == 200
        # 40 are left, and a call may spend more than that.
        stack.app.headers = {"x-tokens": "321"}
        assert (await stack.get()).status_code == 200

        async def is_refused() -> bool:
            status: int = (await stack.get()).status_code
            return status == 429

        stack.app.headers = {}
        await eventually(is_refused)
        served = stack.app.served
        assert (await stack.get()).status_code == 429
        assert stack.app.served == served
        assert (await stack.envoy.counters(ERROR)) == (0,)


async def test_a_client_with_long_headers_escapes_no_limit(stacked: Stacked) -> None:
    # Two descriptors have the name: together they are longer than what Envoy takes of headers.
    async with stacked(policy(daily(2), daily(9, "tokens")), "--tokens-header", "x-tokens") as stack:
        name = {"x-tenant": 50_000 * "x"}
        assert [(await stack.get(**name)).status_code for _ in range(3)] == [200, 200, 429]
        assert await stack.envoy.counters(OK, OVER, ERROR) == (2, 1, 0)


async def test_a_client_with_a_long_trace_escapes_no_limit(stacked: Stacked, tmp_path: Path) -> None:
    async with stacked(policy(daily(2))):
        config = yaml.safe_load((tmp_path / "edge-0/envoy/envoy.yaml").read_text())
        ingress = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        ingress["tracing"] = {
            "overall_sampling": {"value": 0},
            "provider": {
                "name": "envoy.tracers.opentelemetry",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "app"}},
                    "service_name": "edge",
                },
            },
        }
        async with serving(yaml.safe_dump(config), tmp_path / "traced") as envoy:
            # Envoy takes 60 KiB of headers, and passes these on with each of its questions.
            trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": "a=" + 61_000 * "b"}
            answers = [(await envoy.http.get("/", headers=ACME | trace)).status_code for _ in range(3)]
            assert answers == [200, 200, 429]
            assert await envoy.counters(OK, OVER, ERROR, CALLS_ERROR) == (2, 1, 0, 0)


async def test_two_envoys_with_a_sidecar_each_never_exceed_a_limit(stacked: Stacked) -> None:
    limit, callers, requests = 300, 100, 5
    options = ("--failure-mode-deny", "--breaker-domain", "off")
    async with stacked(policy(daily(limit)), *options, envoys=2) as stack:
        asked = [envoy.statuses(callers, requests, ACME) for envoy in stack.envoys]
        statuses = [status for found in await asyncio.gather(*asked) for status in found]
        errors = 0
        for envoy in stack.envoys:
            errors += (await envoy.counters(ERROR))[0]
        assert len(statuses) == 1_000
        assert {*statuses} <= {200, 429, 500}
        # Envoy may stop waiting for a decision that spends: each such request hides at most one.
        assert limit - errors <= stack.app.served <= limit
        assert statuses.count(200) == stack.app.served


async def test_a_filter_and_routes_that_exist_already_need_another_cluster_only(
    stacked: Stacked, tmp_path: Path
) -> None:
    async with stacked(policy(daily(2))):
        config = yaml.safe_load((tmp_path / "edge-0/envoy/envoy.yaml").read_text())
        ingress = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        (route,) = ingress["route_config"]["virtual_hosts"][0]["routes"]
        breakers = route["typed_per_filter_config"].pop("fuseboard.breakers")
        action = {"request_headers": {"header_name": "x-tenant", "descriptor_key": "tenant"}}
        route["route"]["rate_limits"] = [{"actions": [action]}]
        route["typed_per_filter_config"] = {"fuseboard.breakers": breakers}
        old = next(one for one in ingress["http_filters"] if one["name"] == "fuseboard.limits")
        old["name"] = "envoy.filters.http.ratelimit"
        old["typed_config"] = {
            "@type": old["typed_config"]["@type"],
            "domain": "edge",
            "timeout": "1s",
            **yaml.safe_load(sample("rate_limit_service:")),
        }
        for with_breakers in (True, False):
            if not with_breakers:
                # The filter of the breakers has no part in this route.
                del route["typed_per_filter_config"]
            async with serving(yaml.safe_dump(config), tmp_path / f"old-{with_breakers}") as envoy:
                answers = [(await envoy.http.get("/", headers=ACME)).status_code for _ in range(3)]
                assert answers == ([200, 200, 429] if with_breakers else [429] * 3)
                asked = (await envoy.counters(CALLS_OK))[0]
                assert asked == (3 if with_breakers else 0)
