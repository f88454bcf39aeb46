"""The server of envoyproxy/ratelimit: ``RATELIMIT_SERVER`` names its file, built with Go."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import redis
import yaml

from tests.agents.redis_topologies import free_ports
from tests.envoy.descriptor_cases import their_answer
from tests.waiting import PATIENCE_S, wait_until

VARIABLE = "RATELIMIT_SERVER"
#: The commit of envoyproxy/ratelimit whose answers are recorded.
COMMIT = "f2fb15770f7fd1c88ca6c3a1b58ee513917ace96"
_HOUR_S = 3_600


@contextmanager
def serving(binary: str, files: list[dict[str, Any]], folder: Path, redis_url: str) -> Iterator[httpx.Client]:
    """A server with one file for each domain. It ends with the block."""
    config = folder / "ratelimit/config"
    config.mkdir(parents=True)
    for file in files:
        (config / f"{file['domain']}.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    address, ports = urlsplit(redis_url), free_ports(3)
    variables = {
        **dict(zip(("PORT", "GRPC_PORT", "DEBUG_PORT"), map(str, ports), strict=True)),
        **dict.fromkeys(("HOST", "GRPC_HOST", "DEBUG_HOST"), "127.0.0.1"),
        "RUNTIME_ROOT": str(folder),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "BACKEND_TYPE": "redis",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"{address.hostname}:{address.port}",
        "REDIS_AUTH": address.password or "",
        "USE_STATSD": "false",
        "LOG_LEVEL": "error",
    }
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [binary], env={"PATH": os.environ["PATH"], **variables}, stdout=log, stderr=log
        )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{ports[0]}", trust_env=False, timeout=PATIENCE_S
        ) as http:
            wait_until(lambda: _is_healthy(server, http, folder), "envoyproxy/ratelimit is healthy")
            yield http
    finally:
        server.kill()
        server.wait()


def _is_healthy(server: subprocess.Popen[bytes], http: httpx.Client, folder: Path) -> bool:
    assert server.poll() is None, (folder / "log").read_text()
    try:
        return http.get("/healthcheck").status_code == 200
    except httpx.TransportError:
        return False


def their_answers(http: httpx.Client, case: dict[str, Any], limits: redis.Redis) -> list[Any]:
    """The answers to the requests of a case, in one hour and thus in one window."""
    while True:
        limits.flushall()
        began = time.time()
        answers = [_answer(http, case["file"]["domain"], request) for request in case["requests"]]
        if began // _HOUR_S == time.time() // _HOUR_S:
            return answers


def _answer(http: httpx.Client, domain: str, request: dict[str, Any]) -> list[str]:
    descriptors = [
        {"entries": [{"key": key, "value": value} for key, value in entries]}
        for entries in request["descriptors"]
    ]
    asked = {"domain": domain, "descriptors": descriptors, "hitsAddend": request["hits"]}
    answer = http.post("/json", json=asked)
    assert answer.status_code in (200, 429), answer.text
    return their_answer(request, answer.json())
