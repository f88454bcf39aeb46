"""What the access log of a real Envoy brings: answers that break off, waits of gRPC, and several permits."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit
from fuseboard.envoy import access_log
from tests.agents.servers import POLICY
from tests.envoy.conftest import Answering, policy_of
from tests.envoy.real_envoy import Application, application, needs_envoy
from tests.envoy.test_real_envoy_breakers import CALLS, EDGE, envoys, policy
from tests.waiting import eventually

pytestmark = needs_envoy


async def test_a_call_of_grpc_is_paused_for_as_long_as_its_server_asks(answering: Answering, tmp_path: Path):
    async with (
        answering(policy()) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        rpc = {"content-type": "application/grpc", "te": "trailers"}
        app.headers = {
            "content-type": "application/grpc",
            "grpc-status": "8",
            "grpc-retry-pushback-ms": "30000",
        }
        assert (await envoy.http.post("/shop.Orders/Get", headers=rpc)).status_code == 200

        async def refused() -> int:
            answer = await envoy.http.get("/")
            return int(answer.headers["retry-after"]) if answer.status_code == 503 else 0

        # The usual pause is 1 s.
        assert 20 <= await eventually(refused) <= 34


async def test_an_answer_that_breaks_off_opens_no_breaker(
    answering: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    has_begun = asyncio.Event()

    async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegun")
            await has_begun.wait()
            if b"/reset" in head:
                writer.transport.abort()
        writer.close()

    flags, outcomes = list[bytes](), list[Outcome]()
    upstream = await asyncio.start_server(breaks_off, "127.0.0.1", 0)
    app = Application()
    app.port = upstream.sockets[0].getsockname()[1]
    async with (
        upstream,
        answering(policy()) as service,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        judge = service.log._report

        def note(permit: Permit, record: access_log.Record) -> None:
            flags.extend(record.flags)
            judge(permit, record)

        monkeypatch.setattr(service.log, "_report", note)
        monkeypatch.setattr(
            service.agent, "report", lambda permit, outcome, *_, **__: outcomes.append(outcome)
        )
        for number, path in enumerate(("/", "/reset"), start=1):
            has_begun.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", envoy.port)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: app\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            has_begun.set()
            await reader.read()
            writer.close()
            await eventually(lambda so_far=number: len(outcomes) == so_far)  # type: ignore[misc]
        assert outcomes == [Outcome.NEUTRAL, Outcome.NEUTRAL]
        assert set(flags) <= {b"UC", b"UPE"}


async def test_two_domains_with_dependencies_each_get_the_outcome(answering: Answering, tmp_path: Path):
    edge = EDGE.replace("means: tenant", "dependency: search")
    search = replace(POLICY.dependencies[0], name="search")
    rules = policy_of(CALLS, edge, policy=replace(POLICY, dependencies=(*POLICY.dependencies, search)))
    async with (
        answering(rules) as service,
        application() as app,
        envoys(service, app, tmp_path, "edge-1") as (envoy,),
    ):
        assert (await envoy.http.get("/", headers={"x-tenant": "acme"})).status_code == 200
        await eventually(lambda: service.log.outcomes == 2)
        assert (await envoy.http.get("/")).status_code == 200
        await eventually(lambda: service.log.outcomes == 3)
        assert (len(service.sidecar.permits), service.log.unknown) == (0, 0)
