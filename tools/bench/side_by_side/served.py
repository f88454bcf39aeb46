"""How much throughput of a FastAPI application the middleware costs: CPU per request of the serving process,
on the loop of uvloop and on that of asyncio.
"""

import asyncio
import statistics
import subprocess
import sys
from contextlib import ExitStack
from urllib.request import urlopen

from tools.bench.side_by_side import ours
from tools.bench.side_by_side.bars import Results, say
from tools.bench.side_by_side.figures import cpu_of_all_threads
from tools.bench.side_by_side.shared_only import check_shared

#: As uvicorn names them.
LOOPS = ("uvloop", "asyncio")
CONNECTIONS = 50
TENANTS = 20
ROUNDS = 9
ROUND_S = 0.6
#: Rounds that are measured again because a decision was made without Redis. With more, the run fails.
MAX_SPOILED = 5


class Client(asyncio.Protocol):
    """One connection that sends again as soon as it is answered."""

    def __init__(self, tenant: str) -> None:
        lines = ("GET /orders/7 HTTP/1.1", "Host: 127.0.0.1", f"X-Tenant: {tenant}", "", "")
        self._request = "\r\n".join(lines).encode()
        self._waiting = b""
        self.answers = 0
        self.running = True

    def connection_made(self, transport) -> None:
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        # The body is one small object, and comes with or after the head.
        if not self._waiting.endswith(b"}"):
            return
        if not self._waiting.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the application answered {self._waiting[:200]!r}")
        self._waiting = b""
        self.answers += 1
        if self.running:
            self.transport.write(self._request)


async def measure(url: str, redis_pid: int, results: Results) -> None:
    for loop in LOOPS:
        results.ratios[f"fastapi_throughput_{loop}"] = await _throughput(url, loop)


async def _throughput(url: str, loop: str) -> float:
    """Requests per CPU second with the middleware, divided by those without."""
    with ExitStack() as stack:
        served = {name: _serve(stack, name, url, loop) for name in ("plain", "guarded")}
        _, guarded_port = served["guarded"]
        costs: dict[str, list[float]] = {name: [] for name in served}
        # The first round warms up: its first requests may come before Redis is connected.
        local = spoiled = -1
        while len(costs["guarded"]) < ROUNDS:
            found = {name: await _cost(process.pid, port) for name, (process, port) in served.items()}
            before, local = local, await asyncio.to_thread(_local_decisions, guarded_port)
            if local == before:
                for name, cost in found.items():
                    costs[name].append(cost)
            elif (spoiled := spoiled + 1) > MAX_SPOILED:
                check_shared(f"FastAPI on {loop}", local)
    for name, found in costs.items():
        say(f"FastAPI on {loop}, {name}: {statistics.median(found):.1f} us of CPU per request")
    pairs = zip(costs["plain"], costs["guarded"], strict=True)
    return statistics.median(plain / guarded for plain, guarded in pairs)


def _serve(stack: ExitStack, name: str, url: str, loop: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "tools.bench.side_by_side.application", name, url, loop]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def _local_decisions(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/local-decisions", timeout=5) as response:
        return int(response.read())


async def _cost(pid: int, port: int) -> float:
    """Microseconds of CPU per request."""
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(CONNECTIONS):
        tenant = ours.TENANTS[number % TENANTS]
        clients.append((await loop.create_connection(lambda t=tenant: Client(t), "127.0.0.1", port))[1])
    await asyncio.sleep(0.05)
    before, answers = cpu_of_all_threads(pid), sum(client.answers for client in clients)
    await asyncio.sleep(ROUND_S)
    cpu, answers = cpu_of_all_threads(pid) - before, sum(client.answers for client in clients) - answers
    for client in clients:
        client.running = False
    await asyncio.sleep(0.05)
    for client in clients:
        client.transport.close()
    return cpu * 1e6 / answers
