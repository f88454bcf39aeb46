"""Connections of gRPC that end while a real Envoy asks on them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import redis

from fuseboard import AgentSettings
from fuseboard.envoy.grpc_server import GrpcListener
from fuseboard.sidecar.app import Options, running
from tests.agents.published import publish
from tests.agents.servers import TENANTS
from tests.envoy.conftest import Answering
from tests.envoy.real_envoy import application, config_of, needs_envoy, serving
from tests.envoy.rules import ACME, CALLS_ERROR, ERROR, OK, PATIENTLY, daily, policy
from tests.envoy.test_real_envoy_breakers import Balancer
from tests.waiting import eventually

pytestmark = needs_envoy

CONNECTIONS = "cluster.fuseboard.upstream_cx_total"


async def test_few_requests_have_no_decision_when_a_connection_gets_old(
    answering: Answering, tmp_path: Path
) -> None:
    """grpcio may end a request that arrives while it closes the connection, as unavailable."""
    listener = GrpcListener(address=("127.0.0.1", 0), connection_age_s=0.2)
    rules = policy(daily(1_000_000))
    async with answering(rules, envoy_grpc=listener) as service, application() as app:
        config = config_of(
            *("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
            *("--upstream", f"127.0.0.1:{app.port}", *PATIENTLY),
            *("--grpc", f"127.0.0.1:{service.running.grpc.port}"),
        )
        async with serving(config, tmp_path / "envoy") as envoy:
            ended = asyncio.Event()
            answered: list[int] = []

            async def ask() -> None:
                while not ended.is_set():
                    answered.append((await envoy.http.get("/", headers=ACME)).status_code)

            async def has_connected_again() -> bool:
                return (await envoy.counters(CONNECTIONS))[0] > 10

            callers = [asyncio.ensure_future(ask()) for _ in range(10)]
            await eventually(has_connected_again)
            ended.set()
            await asyncio.gather(*callers)
            assert set(answered) == {200}
            ok, *errors = await envoy.counters(OK, ERROR, CALLS_ERROR)
            ended_connections = (await envoy.counters(CONNECTIONS))[0] - 1
            assert ok + errors[0] == len(answered)
            assert all(lost <= ended_connections for lost in errors), (errors, ended_connections)


async def test_a_connection_that_gets_old_moves_requests_to_another_replica(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, policy(daily(1_000_000)), revision=7, tenants=dict(TENANTS))
    listener = GrpcListener(address=("127.0.0.1", 0), connection_age_s=0.2)
    async with AsyncExitStack() as stack:
        replicas = []
        for name in ("rls-1", "rls-2"):
            settings = AgentSettings(redis_url=redis_url, server=name, state_dir=tmp_path / name)
            one = await stack.enter_async_context(
                running(settings, Options(listen=None, envoy_grpc=listener))
            )
            replicas.append(one)
        balancer = Balancer(*(one.grpc.port for one in replicas if one.grpc is not None))
        server = await asyncio.start_server(balancer.connect, "127.0.0.1", 0)
        stack.callback(server.close)
        app = await stack.enter_async_context(application())
        config = config_of(
            *("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *PATIENTLY),
            *("--upstream", f"127.0.0.1:{app.port}"),
            *("--grpc", f"127.0.0.1:{server.sockets[0].getsockname()[1]}"),
        )
        envoy = await stack.enter_async_context(serving(config, tmp_path / "envoy"))

        async def both_gave_permits() -> bool:
            await envoy.http.get("/", headers=ACME)
            return all(one.sidecar.permits.issued > 2 for one in replicas)

        await eventually(both_gave_permits)
