"""The server of envoyproxy/ratelimit: ``RATELIMIT_SERVER`` names its file, built with Go."""

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import psutil
import redis
import yaml

from tests.agents.redis_topologies import free_ports
from tests.envoy.descriptor_cases import their_answer
from tests.waiting import wait_until

VARIABLE = "RATELIMIT_SERVER"
#: The commit of envoyproxy/ratelimit whose answers are recorded.
COMMIT = "f2fb15770f7fd1c88ca6c3a1b58ee513917ace96"
_HOUR_S = 3_600


class NotStarted(Exception):
    """The server ended before it listened. The text is the end of its log."""


class Server(NamedTuple):
    pid: int
    port: int
    grpc_port: int


@contextmanager
def serving(program: str, files: Iterable[dict[str, Any]], folder: Path, redis_url: str) -> Iterator[Server]:
    """A server with one file for each domain. It ends with the block. Raises ``NotStarted``."""
    config = folder / "ratelimit/config"
    config.mkdir(parents=True)
    for file in files:
        (config / f"{file['domain']}.yaml").write_text(yaml.safe_dump(file, sort_keys=False))
    address, (port, grpc_port, debug_port) = urlsplit(redis_url), free_ports(3)
    variables = {
        "PATH": os.environ["PATH"],
        **{"PORT": str(port), "GRPC_PORT": str(grpc_port), "DEBUG_PORT": str(debug_port)},
        **dict.fromkeys(("HOST", "GRPC_HOST", "DEBUG_HOST"), "127.0.0.1"),
        "RUNTIME_ROOT": str(folder),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_WATCH_ROOT": "false",
        "BACKEND_TYPE": "redis",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"{address.hostname}:{address.port}",
        "REDIS_AUTH": address.password or "",
        "USE_STATSD": "false",
        "LOG_LEVEL": "error",
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([program], env=variables, stdout=output, stderr=output)

    def has_begun() -> bool:
        if process.poll() is not None:
            raise NotStarted(log.read_text()[-1000:])
        connections = psutil.Process(process.pid).net_connections("tcp")
        return {one.laddr.port for one in connections}.issuperset((port, grpc_port))

    try:
        wait_until(has_begun, "envoyproxy/ratelimit to listen")
        yield Server(process.pid, port, grpc_port)
    finally:
        process.kill()
        process.wait()


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
