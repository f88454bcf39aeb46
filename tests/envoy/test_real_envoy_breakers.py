"""Breakers of calls through a real Envoy: its access log says how they end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
import yaml
from msgspec.structs import replace

from fuseboard import AgentSettings
from fuseboard.contract import keys
from fuseboard.contract.policy import BreakerPolicy, Tier
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit
from fuseboard.envoy import access_log
from fuseboard.envoy.grpc_server import GrpcListener
from fuseboard.sidecar.app import Options, Running, running
from tests.agents.limit_kinds import window
from tests.agents.published import decides_by, publish
from tests.agents.servers import POLICY, TENANTS
from tests.envoy.conftest import Answering, policy_of
from tests.envoy.conftest import Envoy as Service
from tests.envoy.real_envoy import Application, Envoy, application, config_of, needs_envoy, serving
from tests.envoy.rules import CALLS_OK, PATIENTLY
from tests.waiting import eventually

pytestmark = needs_envoy

CALLS = """
domain: calls
descriptors:
  - key: destination_cluster
    value: app
    dependency: payments
"""
EDGE = """
domain: edge
descriptors:
  - key: tenant
    means: tenant
"""
BREAKER = BreakerPolicy(
    consecutive_failures=3,
    minimum_servers=2,
    open_ms=1_000,
    open_max_ms=1_000,
    successes_to_close=1,
    probe_lease_ms=5_000,
)
VENDOR = window(500, 3_600, "calls")
TENANT = window(2, 3_600, "requests")

Change = Any


def policy(**changes: Any) -> Any:
    payments = replace(
        POLICY.dependencies[0],
        breaker=replace(BREAKER, **changes),
        vendor_limits=(VENDOR,),
        timeout_ms=1_000,
    )
    tiers = (Tier(name="free", quotas=(TENANT,)), Tier(name="unlimited"))
    return policy_of(CALLS, EDGE, policy=replace(POLICY, tiers=tiers, dependencies=(payments,)))


@asynccontextmanager
async def envoys(
    service: Service, app: Application, folder: Path, *nodes: str, change: Change = None
) -> AsyncIterator[list[Envoy]]:
    """One Envoy for each of these nodes, all in front of one application and one service."""
    text = config_of(
        *("--full", "--unix", service.path, "--upstream", f"127.0.0.1:{app.port}"),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *PATIENTLY),
    )
    if change is not None:
        config = yaml.safe_load(text)
        change(config)
        text = yaml.safe_dump(config)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(text, folder / node, node=node)) for node in nodes]


def manager_of(config: Any) -> Any:
    """The HTTP connection manager of a whole configuration."""
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def state(limits: redis.Redis) -> str:
    text = limits.get(keys.breaker("production", "payments"))
    return text.decode().split(" ")[0] if text is not None else "none"


async def test_a_breaker_opens_probes_and_closes(
    answering: Answering,
    tmp_path: Path,
    limits: redis.Redis,
    record_property: Callable[[str, object], None],
):
    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        assert (await envoy.http.get("/")).status_code == 200
        await eventually(lambda: service.log.outcomes == 1)
        app.status = 500
        failed_at = monotonic()
        for _ in range(3):
            assert (await envoy.http.get("/")).status_code == 500

        async def refused() -> Any:
            answer = await envoy.http.get("/")
            return answer if answer.status_code == 503 else None

        answer = await eventually(refused, every_s=0.02)
        record_property("opened_after_s", monotonic() - failed_at)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["reason"] == "breaker_open"
        assert int(answer.headers["retry-after"]) >= 1
        assert state(limits) == "open"

        async def stops() -> bool:
            served = app.served
            return (await envoy.http.get("/")).status_code == 503 and app.served == served

        await eventually(stops)  # a probe passes each second
        app.status = 200
        # The first call after the open time is the probe.
        await eventually(lambda: _is_ok(envoy))
        await eventually(lambda: state(limits) == "closed")


async def test_a_breaker_opens_by_the_status_of_grpc(
    answering: Answering, tmp_path: Path, limits: redis.Redis
):
    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        rpc = {"content-type": "application/grpc", "te": "trailers"}
        app.headers = {"content-type": "application/grpc", "grpc-status": "0"}
        assert (await envoy.http.post("/shop.Orders/Get", headers=rpc)).status_code == 200
        await eventually(lambda: service.log.outcomes == 1)
        assert state(limits) in ("none", "closed")
        app.headers["grpc-status"] = "14"
        for _ in range(3):
            assert (await envoy.http.post("/shop.Orders/Get", headers=rpc)).status_code == 200
        await eventually(lambda: state(limits) == "open")


async def test_a_client_that_claims_to_speak_grpc_opens_no_breaker(
    answering: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        outcomes = list[Outcome]()
        monkeypatch.setattr(
            service.agent, "report", lambda permit, outcome, *_, **__: outcomes.append(outcome)
        )
        answer = await envoy.http.post("/", headers={"content-type": "application/grpc"})
        assert (answer.status_code, answer.text) == (200, "served")
        await eventually(lambda: outcomes)
        assert outcomes == [Outcome.OK]


async def _is_ok(envoy: Envoy) -> bool:
    return (await envoy.http.get("/")).status_code == 200


async def test_a_slow_client_is_no_slow_upstream(
    answering: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        report, times = service.agent.report, list[float]()

        def note(permit: Permit, outcome: Outcome, elapsed_s: float | None = None, **more: int) -> None:
            assert elapsed_s is not None
            times.append(elapsed_s)
            report(permit, outcome, elapsed_s, **more)

        monkeypatch.setattr(service.agent, "report", note)
        app.body = 20_000_000 * b"x"

        async def read_slowly() -> bool:
            known = len(times)
            reader, writer = await asyncio.open_connection("127.0.0.1", envoy.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n")
            await asyncio.sleep(0.5)
            while await reader.read(1_000_000):
                pass
            writer.close()
            await eventually(lambda: len(times) > known)
            return times[-1] < 0.5

        await eventually(read_slowly)  # a busy machine may be slow, too
        known, app.body, served = len(times), b"served", app.served
        app.go.clear()
        asked = asyncio.create_task(envoy.http.get("/"))
        await eventually(lambda: app.served > served)
        await asyncio.sleep(0.3)
        app.go.set()
        assert (await asked).status_code == 200
        await eventually(lambda: len(times) > known)
        assert times[-1] >= 0.25


async def test_clients_that_do_not_read_open_no_breaker(
    answering: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def change(config: Any) -> None:
        (route,) = manager_of(config)["route_config"]["virtual_hosts"][0]["routes"]
        route["route"]["timeout"] = "1s"

    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1", change=change) as (envoy,),
    ):
        outcomes = list[Outcome]()
        monkeypatch.setattr(
            service.agent, "report", lambda permit, outcome, *_, **__: outcomes.append(outcome)
        )
        app.body = 20_000_000 * b"x"

        begun = list[Outcome]()

        async def three_have_begun() -> bool:
            known = len(outcomes)
            reader, writer = await asyncio.open_connection("127.0.0.1", envoy.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: app\r\n\r\n")
            status = await reader.readuntil(b"\r\n")
            await eventually(lambda: len(outcomes) > known)
            writer.close()
            # A busy machine may be late with the first byte. Then Envoy answers.
            if b" 200 " in status:
                begun.append(outcomes[-1])
            return len(begun) == 3

        await eventually(three_have_begun)
        assert set(begun) == {Outcome.NEUTRAL}


async def test_failures_of_one_envoy_stop_no_other(answering: Answering, tmp_path: Path, limits: redis.Redis):
    async with (
        answering(policy(open_ms=60_000, open_max_ms=60_000)) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1", "edge-2") as (good, bad),
    ):
        assert await _is_ok(good)
        await eventually(lambda: service.log.outcomes == 1)
        app.status = 500
        for _ in range(6):
            assert (await bad.http.get("/")).status_code == 500
        await eventually(lambda: service.log.outcomes == 7)
        app.status = 200
        assert await _is_ok(good)
        assert await _is_ok(bad)
        await eventually(lambda: service.log.outcomes == 9)
        assert (state(limits), len(service.log.nodes)) == ("closed", 2)
        app.status = 500
        for envoy in (good, bad, good, bad, good):
            await envoy.http.get("/")
        await eventually(lambda: state(limits) == "open")


class Balancer:
    """A virtual address with two processes behind it: each connection goes to the next one."""

    def __init__(self, *ports: int) -> None:
        self._ports, self.connections = ports, 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._ports[self.connections % len(self._ports)]
        self.connections += 1
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(self._copy(reader, requests), self._copy(answers, writer))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while part := await source.read(65_536):
                target.write(part)
                await target.drain()
        target.close()


async def test_the_log_reaches_the_process_that_gave_the_permit(
    limits: redis.Redis, redis_url: str, tmp_path: Path
):
    """Two replicas over gRPC. A thread of Envoy has one connection for its filters and its log."""
    publish(limits, policy(), revision=7, tenants=dict(TENANTS))
    listener = GrpcListener(address=("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        replicas: list[Running] = []
        for name in ("rls-1", "rls-2"):
            settings = AgentSettings(redis_url=redis_url, server=name, state_dir=tmp_path / name)
            options = Options(listen=None, envoy_grpc=listener)
            replicas.append(await stack.enter_async_context(running(settings, options)))
        for one in replicas:
            await eventually(decides_by(one.agent, 7))
        balancer = Balancer(*(one.grpc.port for one in replicas if one.grpc is not None))
        server = await asyncio.start_server(balancer.connect, "127.0.0.1", 0)
        stack.callback(server.close)
        app = await stack.enter_async_context(application())
        text = config_of(
            *("--full", "--grpc", f"127.0.0.1:{server.sockets[0].getsockname()[1]}", *PATIENTLY),
            *("--upstream", f"127.0.0.1:{app.port}", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        )
        envoy = await stack.enter_async_context(serving(text, tmp_path / "envoy", threads=4, node="edge-1"))
        for _ in range(2):
            answers = await asyncio.gather(*(envoy.http.get("/") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
        logs = [one.access_log for one in replicas if one.access_log is not None]
        # A busy machine may be too late with a decision; then there is no permit.
        (decided,) = await envoy.counters(CALLS_OK)
        await eventually(lambda: sum(log.outcomes for log in logs) == decided)
        assert sum(log.unknown for log in logs) == 0
        assert all(one.sidecar.permits.issued for one in replicas)
        app.status = 500

        async def refused() -> bool:
            return (await envoy.http.get("/")).status_code == 503

        await eventually(refused)
        assert state(limits) == "open"


async def test_attempts_are_charged_and_refusals_of_the_limits_give_back(
    answering: Answering, tmp_path: Path
):
    def retries(config: Any) -> None:
        (route,) = manager_of(config)["route_config"]["virtual_hosts"][0]["routes"]
        route["route"]["retry_policy"] = {
            "retry_on": "5xx",
            "num_retries": 2,
            "retry_back_off": {"base_interval": "0.001s"},
        }

    async with (
        answering(policy(consecutive_failures=100)) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1", change=retries) as (envoy,),
    ):
        app.status = 500
        assert (await envoy.http.get("/")).status_code == 500
        assert app.served == 3
        await eventually(lambda: service.log.repeated == 2)
        app.status = 200
        statuses = [(await envoy.http.get("/", headers={"x-tenant": "acme"})).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        await eventually(lambda: service.log.outcomes == 4)

        async def left() -> int | None:
            permit = await service.agent.admit_call("payments")
            service.agent.give_back(permit)
            return permit.decision.limits[0].remaining

        # Three attempts, two good calls, and the one that asks.
        await eventually(left, accept=lambda remaining: remaining == 500 - 3 - 2 - 1)


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer nothing: close the connection at once, or when the client does."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        if b"/late" in await reader.readuntil(b"\r\n\r\n"):
            await reader.read()
    writer.close()


async def test_each_way_to_fail_has_its_kind(
    answering: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kinds: list[str] = []
    monkeypatch.setattr(access_log, "note_failure", lambda permit, kind: kinds.append(kind))
    upstream = await asyncio.start_server(closes, "127.0.0.1", 0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # no process listens on it
        clusters = {
            "closing": upstream.sockets[0].getsockname()[1],
            "away": unused.getsockname()[1],
            "empty": None,
        }

        def routes(config: Any) -> None:
            (host,) = manager_of(config)["route_config"]["virtual_hosts"]
            (usual,) = host["routes"]
            host["routes"] = [
                usual | {"match": {"prefix": f"/{name}"}, "route": {"cluster": name, "timeout": "0.3s"}}
                for name in clusters
            ]
            config["static_resources"]["clusters"] += [
                _cluster(name, port) for name, port in clusters.items()
            ]

        calls = CALLS.replace("    value: app\n", "")  # each cluster
        rules = replace(policy(consecutive_failures=100), descriptors=policy_of(calls, EDGE).descriptors)
        async with (
            upstream,
            answering(rules) as service,
            application() as app,
            envoys(service, app, tmp_path, "edge-1", change=routes) as (envoy,),
        ):
            paths = {
                "/closing": "connection_lost",
                "/closing/rpc": "connection_lost",
                "/closing/late": "timeout",
                "/away": "connection_failed",
                "/empty": "no_healthy_upstream",
            }
            for number, path in enumerate(paths, start=1):
                # Envoy answers a call of gRPC with 200 and a status of gRPC.
                rpc = path.endswith("rpc")
                kind = {"content-type": "application/grpc", "te": "trailers"} if rpc else {}
                answer = await envoy.http.get(path, headers=kind)
                assert answer.status_code in ((200,) if rpc else (503, 504))
                await eventually(lambda outcomes=number: service.log.outcomes == outcomes)
            assert kinds == list(paths.values())


def _cluster(name: str, port: int | None) -> Any:
    hosts = (
        []
        if port is None
        else [{"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}]
    )
    endpoints = [{"lb_endpoints": [{"endpoint": host} for host in hosts]}]
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }


async def test_without_the_log_permits_expire(answering: Answering, tmp_path: Path):
    def no_log(config: Any) -> None:
        del manager_of(config)["access_log"]

    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1", change=no_log) as (envoy,),
    ):
        for _ in range(3):
            assert await _is_ok(envoy)
        permits = service.sidecar.permits
        assert (permits.issued, len(permits)) == (3, 3)
        # After the timeout of the dependency and 5 s.
        await eventually(lambda: permits.expired == 3)
        assert service.log.outcomes == 0


async def test_a_limit_of_the_upstream_stops_the_fleet(answering: Answering, tmp_path: Path):
    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        app.status, app.headers = 429, {"retry-after": "30"}
        assert (await envoy.http.get("/")).status_code == 429

        async def cools() -> bool:
            answer = await envoy.http.get("/")
            return answer.status_code == 503 and answer.json()["reason"] == "cooling_down"

        await eventually(cools)
