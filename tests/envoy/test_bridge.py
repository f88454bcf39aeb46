"""The rate limit service over HTTP/1.1, as Envoy's bridge asks it."""

import asyncio
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from fuseboard import Agent
from fuseboard.decision import Decision
from fuseboard.envoy import figures
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.envoy.bridge import Bridge
from fuseboard.envoy.service import SHOULD_RATE_LIMIT
from fuseboard.serving.exchange import Answer, Request
from tests.agents.limit_kinds import window
from tests.agents.published import publish
from tests.agents.servers import POLICY
from tests.envoy.conftest import Answering, Envoy, policy_of
from tests.envoy.messages import OK, OVER, codes, descriptor, request
from tests.waiting import PATIENCE_S, eventually, wait_until

FILE = """
domain: edge
descriptors:
  - key: path
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: to
    dependency: payments
"""
PATH = request(descriptor(("path", "/a")))
CALL = request(descriptor(("to", "x")))
PROTOBUF = {"content-type": "application/x-protobuf"}
#: The window is long, so no call comes back by itself.
LEFT = 10
PAYMENTS = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=(window(LEFT, 3_600),))
RULES = policy_of(FILE, dependencies=(PAYMENTS,))


@asynccontextmanager
async def client(envoy: Envoy) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=envoy.path)
    async with httpx.AsyncClient(transport=transport, base_url="http://rls", timeout=PATIENCE_S) as http:
        yield http


async def test_the_body_is_the_message(answering: Answering) -> None:
    async with answering(RULES) as envoy, client(envoy) as http:
        for expected in (OK, OK, OK, OVER):
            answer = await http.post(SHOULD_RATE_LIMIT, content=PATH, headers=PROTOBUF)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-protobuf")
            assert codes(pb.RateLimitResponse.FromString(answer.content)) == (expected, [expected])
        assert stat.S_IMODE(os.stat(envoy.path).st_mode) == 0o660
    with pytest.raises(FileNotFoundError):
        os.stat(envoy.path)


@pytest.mark.parametrize(
    ("method", "path", "body", "more", "status"),
    [
        ("POST", SHOULD_RATE_LIMIT, b"\xff", {}, 400),
        ("POST", SHOULD_RATE_LIMIT, PATH, {"content-type": "application/grpc"}, 415),
        ("POST", SHOULD_RATE_LIMIT, PATH, {"origin": "http://evil.example"}, 403),
        ("GET", SHOULD_RATE_LIMIT, b"", {}, 405),
        ("POST", "/v1/calls", PATH, {}, 404),
        ("POST", SHOULD_RATE_LIMIT, b"x" * (2**20 + 1), {}, 413),
    ],
)
async def test_what_is_no_request_gets_no_decision(
    answering: Answering, method: str, path: str, body: bytes, more: dict[str, str], status: int
) -> None:
    async with answering(RULES) as envoy, client(envoy) as http:
        answer = await http.request(method, path, content=body, headers=PROTOBUF | more)
        assert answer.status_code == status
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)
        assert envoy.service.allowed + envoy.service.refused == 0


async def test_another_user_is_refused(answering: Answering) -> None:
    async with answering(RULES, uids=frozenset({os.getuid() + 1})) as envoy, client(envoy) as http:
        answer = await http.post(SHOULD_RATE_LIMIT, content=PATH, headers=PROTOBUF)
        assert answer.status_code == 403


async def test_a_long_value_is_read(answering: Answering) -> None:
    async with answering(RULES) as envoy, client(envoy) as http:
        long = request(descriptor(("path", "x" * 60_000)))
        answer = await http.post(SHOULD_RATE_LIMIT, content=long, headers=PROTOBUF)
        assert codes(pb.RateLimitResponse.FromString(answer.content)) == (OK, [OK])


async def test_what_was_granted_to_a_peer_that_left_is_given_back(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, decided = asyncio.Event(), asyncio.Event()
    admit = Agent.admit_together

    async def late(self: Agent, asks: Any) -> Decision:
        decision = await admit(self, asks)
        decided.set()
        await go.wait()
        return decision

    async with answering(RULES) as envoy:
        _, writer = await asyncio.open_unix_connection(envoy.path)
        monkeypatch.setattr(Agent, "admit_together", late)
        both = request(descriptor(("to", "x")), descriptor(("path", "/a")), hits=3)
        head = f"POST {SHOULD_RATE_LIMIT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
        writer.write(f"{head}content-length: {len(both)}\r\n\r\n".encode() + both)
        await decided.wait()
        writer.close()
        await eventually(lambda: len(envoy.running.connections[-1]) == 0)
        go.set()
        monkeypatch.setattr(Agent, "admit_together", admit)
        # The call is given back while the answer of the limit is waited for; that of the limit has come.
        assert len(envoy.sidecar.permits) == 0
        await eventually(lambda: calls_left(envoy), accept=lambda left: left == LEFT - 1)


async def calls_left(envoy: Envoy) -> int | None:
    permit = await envoy.agent.admit_call("payments")
    left = permit.decision.limits[0].remaining
    envoy.agent.give_back(permit)
    return left


async def test_an_answer_that_could_not_be_sent_gives_back_what_it_granted(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        body = request(descriptor(("to", "x")), descriptor(("path", "/a")), hits=3)
        asked = Request(method="POST", path=SHOULD_RATE_LIMIT, headers=PROTOBUF, body=body)
        handled = Bridge(envoy.service, envoy.log).handle(asked)
        assert not isinstance(handled, Answer)
        answer = await handled
        assert (len(envoy.sidecar.permits), answer.unsent is None) == (1, False)
        answer.unsent()
        assert len(envoy.sidecar.permits) == 0

        async def left() -> pb.RateLimitResponse:
            return await envoy.ask(request(descriptor(("path", "/a"), hits=0)))

        await eventually(left, accept=lambda answer: answer.statuses[0].limit_remaining == 3)


async def test_metrics_have_what_envoy_asked(answering: Answering) -> None:
    async with answering(RULES, probes=("127.0.0.1", 0)) as envoy, client(envoy) as http:
        for body in (PATH, PATH, PATH, PATH, CALL, b"\xff", request(descriptor(("no", "rule")))):
            await http.post(SHOULD_RATE_LIMIT, content=body, headers=PROTOBUF)
        base = f"http://127.0.0.1:{envoy.running.probes_port}"
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, trust_env=False) as probes:
            text = (await probes.get("/metrics")).text
    found = dict(re.findall(r'^(fuseboard_envoy_\w+)\{server="edge-1"\} (\d+)$', text, re.MULTILINE))
    assert found.keys() == {figure.series for figure, _ in (*figures.FIGURES, *figures.LOG_FIGURES)}
    assert (found["fuseboard_envoy_allowed_total"], found["fuseboard_envoy_refused_total"]) == ("5", "1")
    assert (found["fuseboard_envoy_invalid_total"], found["fuseboard_envoy_unmatched_total"]) == ("1", "1")
    assert 'fuseboard_sidecar_permits_issued_total{server="edge-1"} 1' in text


def test_the_page_has_every_figure() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/envoy.md").read_text()
    named = set(re.findall(r"`(fuseboard_envoy_[a-z_]+)`", page))
    every = [figure for figure, _ in (*figures.FIGURES, *figures.LOG_FIGURES)]
    every += figures.TLS_FIGURES
    assert named == {figure.series for figure in every}


def test_the_command_answers_envoy_alone_until_it_is_stopped(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, RULES, revision=7)
    path = tmp_path / "envoy.sock"
    variables = {"FUSEBOARD_REDIS_URL": redis_url, "FUSEBOARD_STATE_DIR": str(tmp_path / "state")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    options = ("--listen", "off", "--probes", "off", "--envoy-unix", str(path))
    process = subprocess.Popen(
        [sys.executable, "-m", "fuseboard", "sidecar", *options],
        env=kept | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening for Envoy on unix:{path}\n"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=PATIENCE_S) as http:
            check = request(descriptor(("path", "/a"), hits=0))

            def limit() -> int:
                answer = http.post(f"http://rls{SHOULD_RATE_LIMIT}", content=check, headers=PROTOBUF)
                (status,) = pb.RateLimitResponse.FromString(answer.content).statuses
                assert status.code == OK
                return status.current_limit.requests_per_unit

            # The start waits half a second for Redis.
            wait_until(limit, accept=lambda found: found == 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.communicate()
