"""What a beat costs the gateway, beside the least a request can cost.

Both are served by uvicorn with the same options, each in a process of its own, in turns: a bare
ASGI application that reads its body and answers, and ``manage.py gateway`` with its token check,
validation, fleet and flushes into a real Postgres. Counted are answers per second of the serving
process's own CPU time; the client's does not count. Run it as ``python tests/bench/gateway.py``.
"""

import asyncio
import http.client
import itertools
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import msgspec
import psutil
import uvicorn

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

BAR = 0.55
ROUNDS = 5
ROUND_S = 2.4
WARM_S = 3.0
CONNECTIONS = 32
SERVERS = 2_000
SECRET = "only-for-this-benchmark"
TOKEN = f"fb_bench_{SECRET}"

SEED = f"""
from datetime import UTC, datetime, timedelta
from controlplane.accounts.models import AgentToken
from controlplane.audit.actor import Actor
from controlplane.policies import edits
bench = Actor(name="bench", role="admin", origin="command")
edits.create_environment(environment="production", reason="a benchmark", actor=bench)
AgentToken.objects.create(
    name="bench", selector="bench", environment="production", digest="{sha256(SECRET.encode()).hexdigest()}",
    expires_at=datetime.now(UTC) + timedelta(days=1),
)
"""

#: Stand for a server's number and its beat's, as wide as they get.
SERVER_MARK, SEQUENCE_MARK = b"pod-00000", b"1000000000000000"


async def bare(scope, receive, send):
    """The least that reads a body and answers."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def serve_bare():
    from controlplane.gateway.serving import BACKLOG, uvicorn_config

    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        sys.stdout.write(f"Serving http://127.0.0.1:{listener.getsockname()[1]}/\n")
        sys.stdout.flush()
        config = uvicorn_config(bare, http="httptools")
        config.lifespan = "off"
        uvicorn.Server(config).run(sockets=[listener])


def request_template(head):
    """One beat as bytes on the wire: about 1.7 KB, twelve dependencies, ten tenants."""
    from fuseboard.contract.sync import (
        LATENCY_EDGES_US,
        SYNC_PATH,
        Applied,
        BreakerView,
        Counters,
        DependencyCounters,
        StoreCounters,
        SyncRequest,
        TenantCounters,
    )

    beat = SyncRequest(
        environment="production",
        service="bench",
        server=SERVER_MARK.decode(),
        boot="boot-0001",
        sequence=int(SEQUENCE_MARK),
        agent_version="0.1.0",
        up_ms=3_600_000,
        applied=Applied(epoch=head.epoch, revision=head.revision, hash=head.hash),
        breakers=tuple(
            BreakerView(dependency=f"vendor-{n}", for_ms=90_000, window_calls=n) for n in range(4)
        ),
        counters=Counters(
            requests=int(SEQUENCE_MARK),
            store=StoreCounters(asked=10**6, latency=tuple(range(len(LATENCY_EDGES_US) + 1))),
            dependencies=tuple(
                DependencyCounters(dependency=f"vendor-{n}", ok=int(SEQUENCE_MARK), failure=n)
                for n in range(12)
            ),
            tenants=tuple(
                TenantCounters(tenant=f"tenant-{n}", allowed=int(SEQUENCE_MARK), refused=n) for n in range(10)
            ),
        ),
    )
    body = msgspec.json.encode(beat)
    lines = (
        f"POST {SYNC_PATH} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {TOKEN}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Pod(asyncio.Protocol):
    """One connection that sends the next beat as soon as the last one is answered."""

    numbers = itertools.count()

    def __init__(self, template):
        self.parts = re.split(b"(%b|%b)" % (SERVER_MARK, SEQUENCE_MARK), template)
        self.answers = 0
        self.running = True
        self.waiting = b""

    def connection_made(self, transport):
        self.transport = transport
        self.send()

    def send(self):
        number = next(Pod.numbers)
        marks = {
            SERVER_MARK: b"pod-%05d" % (number % SERVERS),
            SEQUENCE_MARK: b"%d" % (int(SEQUENCE_MARK) + number),
        }
        self.transport.write(b"".join(marks.get(part, part) for part in self.parts))

    def data_received(self, data):
        self.waiting += data
        # Both answer with small JSON and nothing after it.
        if self.waiting.endswith(b"}"):
            if not self.waiting.startswith(b"HTTP/1.1 200"):
                raise SystemExit(self.waiting.decode())
            self.waiting = b""
            self.answers += 1
            if self.running:
                self.send()


async def drive(port, template, seconds):
    """Answers received in ``seconds`` over ``CONNECTIONS`` connections."""
    loop = asyncio.get_running_loop()
    pods = [
        (await loop.create_connection(lambda: Pod(template), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds)
    for pod in pods:
        pod.running = False
    await asyncio.sleep(0.05)
    for pod in pods:
        pod.transport.close()
    return sum(pod.answers for pod in pods)


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def cpu_s(process):
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def measure(process, port, template):
    """Answers per second of the process's CPU time."""
    before = cpu_s(process)
    answers = asyncio.run(drive(port, template, ROUND_S))
    return answers / (cpu_s(process) - before)


def start(stack, command, environment):
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, *command], cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True
        )
    )
    stack.callback(process.kill)
    return process, int(re.search(r":(\d+)/", process.stdout.readline())[1])


def wait_until_ready(port, template):
    """The head that the gateway serves, once it does."""
    from fuseboard.contract.sync import SYNC_PATH, decode_response

    deadline = time.monotonic() + 15
    headers, _, body = template.partition(b"\r\n\r\n")
    fields = dict(line.decode().split(": ") for line in headers.split(b"\r\n")[1:])
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("POST", SYNC_PATH, body, fields)
        answer = connection.getresponse()
        document = answer.read()
        connection.close()
        if answer.status == 200:
            return decode_response(document).head
        time.sleep(0.1)
    raise SystemExit("the gateway did not become ready")


def main():
    from controlplane import embedded
    from fuseboard.contract.policy import ConfigHead

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(embedded.running(list(embedded.SERVERS), folder=folder, forgetful=True))
        environment = os.environ | {
            "FUSEBOARD_LOG_LEVEL": "WARNING",
            "FUSEBOARD_TOKEN_RATE_PER_S": "1000000",
            "FUSEBOARD_TOKEN_BURST": "1000000",
        }
        for arguments in (["migrate", "--verbosity", "0"], ["shell", "--verbosity", "0", "-c", SEED]):
            subprocess.run(
                [sys.executable, "manage.py", *arguments], cwd=PROJECT, env=environment, check=True
            )
        gateway, gateway_port = start(stack, ["manage.py", "gateway", "--port", "0"], environment)
        rival, rival_port = start(stack, [__file__, "--serve-bare"], environment)
        head = wait_until_ready(gateway_port, request_template(ConfigHead(epoch=0, revision=0, hash="")))
        template = request_template(head)
        # Every server is met once before anything is counted, and written.
        asyncio.run(drive(gateway_port, template, WARM_S))
        ratios = []
        for _ in range(ROUNDS):
            bare_rate = measure(rival, rival_port, template)
            rate = measure(gateway, gateway_port, template)
            ratios.append(rate / bare_rate)
            say(f"bare {bare_rate:,.0f}/CPU-s   gateway {rate:,.0f}/CPU-s   {ratios[-1]:.2f}")
    ratio = statistics.median(ratios)
    size = len(template.split(b"\r\n\r\n")[1])
    say(f"{size:,} bytes of beat, {SERVERS:,} servers, {CONNECTIONS} connections")
    say(f"RATIO gateway_vs_bare {ratio:.2f} (bar >= {BAR})")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve-bare"]:
        serve_bare()
    else:
        sys.exit(main())
