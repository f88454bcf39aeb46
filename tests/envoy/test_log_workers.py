"""Envoy's log lands at any worker of a sidecar, and counts at the one that gave the permit."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import redis

from fuseboard.contract import keys
from fuseboard.contract.policy import Policy
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.envoy.access_log import EXPORT_OVER_HTTP
from fuseboard.envoy.service import SHOULD_RATE_LIMIT
from tests.agents.published import publish
from tests.envoy.messages import descriptor, request
from tests.envoy.test_access_log import export, record
from tests.envoy.test_real_envoy_breakers import policy
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
PROTOBUF = {"content-type": "application/x-protobuf"}
ASK = request(descriptor(("destination_cluster", "app")), domain="calls")


@contextmanager
def workers(limits: redis.Redis, redis_url: str, folder: Path, published: Policy) -> Iterator[str]:
    """Two workers that accept from one socket of Envoy: the address of their metrics."""
    publish(limits, published, revision=7)
    path = folder / "envoy.sock"
    options = [
        "--listen",
        "off",
        "--probes",
        "127.0.0.1:0",
        "--envoy-unix",
        str(path),
        "--workers",
        "2",
        "--drain-s",
        "0",
    ]
    variables = {
        "FUSEBOARD_REDIS_URL": redis_url,
        "FUSEBOARD_SERVER": "edge",
        "FUSEBOARD_STATE_DIR": str(folder / "state"),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "fuseboard", "sidecar", *options],
        cwd=ROOT,
        env=kept | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("probes and metrics on "):
            assert line.startswith("listening "), line
        yield line.removeprefix("probes and metrics on ").strip()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def counted(probes: str, series: str) -> int:
    """The sum of a figure over both workers."""
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        text = http.get(f"{probes}/metrics").text
    return sum(int(value) for value in re.findall(rf"^{series}\{{.*\}} (\d+)$", text, re.MULTILINE))


def test_the_log_is_handed_on_to_the_worker_that_gave_the_permit(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with workers(limits, redis_url, tmp_path, policy(consecutive_failures=4)) as probes, ExitStack() as stack:
        connections: dict[str, httpx.Client] = {}

        def permit(http: httpx.Client) -> str:
            answer = http.post(SHOULD_RATE_LIMIT, content=ASK, headers=PROTOBUF)
            message = pb.RateLimitResponse.FromString(answer.content)
            assert message.overall_code == pb.RateLimitResponse.OK
            return str(message.dynamic_metadata["permit"])

        def log(http: httpx.Client, name: str, node: str, **changes: str) -> None:
            body = export(record(name, **changes), node=node)
            assert http.post(EXPORT_OVER_HTTP, content=body, headers=PROTOBUF).status_code == 200

        asked = 0

        def look() -> bool:
            nonlocal asked
            socket = httpx.HTTPTransport(uds=str(tmp_path / "envoy.sock"))
            http = httpx.Client(transport=socket, base_url="http://localhost", timeout=PATIENCE_S)
            name = permit(stack.enter_context(http))
            connections.setdefault(name.partition("-")[0], http)
            log(http, name, "edge-1")
            asked += 1
            return len(connections) == 2

        wait_until(look, "a connection to each worker")
        first, second = connections["p1"], connections["p2"]
        for node in ("edge-1", "edge-2", "edge-1", "edge-2"):
            log(second, permit(first), node, code="503", flags="UF")
        wait_until(lambda: counted(probes, "fuseboard_envoy_outcomes_total") == asked + 4)
        # The log of each Envoy counts under its name, whichever worker it came to.
        wait_until(lambda: (limits.get(keys.breaker("production", "payments")) or b"").startswith(b"open"))
        assert counted(probes, "fuseboard_envoy_outcomes_unknown_total") == 0
        log(second, "p1-" + "0" * 24, "edge-1")
        wait_until(lambda: counted(probes, "fuseboard_envoy_outcomes_unknown_total") == 1)
