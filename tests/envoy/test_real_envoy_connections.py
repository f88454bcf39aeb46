"""Connections of gRPC that end while a real Envoy asks on them."""

import asyncio
from pathlib import Path

from fuseboard.envoy.grpc_server import GrpcListener
from tests.envoy.conftest import Answering
from tests.envoy.real_envoy import application, config_of, needs_envoy, serving
from tests.envoy.rules import ACME, CALLS_ERROR, ERROR, OK, PATIENTLY, daily, policy
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
