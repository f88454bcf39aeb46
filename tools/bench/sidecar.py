"""What a call costs that a sidecar guards, beside envoyproxy/ratelimit's ``/json`` and a bare HTTP server.

A pair is the question whether a call may be made, and the report of its outcome. Its cost is the CPU of the
serving process and of Redis, whose limit is never leased: every question asks Redis. ``RATELIMIT_SERVER``
names the program of envoyproxy/ratelimit, if it is not in ``PATH``.

Run it as ``python tools/bench/sidecar.py``.
"""

import asyncio
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import redis

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import PROJECT, Bars, Skip, say, within

from controlplane.embedded.children import free_port, last_lines
from controlplane.embedded.valkey import Valkey
from tests.agents.published import ENVIRONMENT, publish
from tests.envoy.real_ratelimit import VARIABLE
from tests.waiting import wait_until
from tools.bench.http_pairs.callers import DOMAIN, ENTRY, Kind, drive, request
from tools.bench.side_by_side import ours
from tools.bench.side_by_side.figures import cpu_of_all_threads
from tools.bench.side_by_side.shared_only import DecidedLocallyError

SIDECAR, CARRIED = "sidecar", "sidecar, carried reports"
RATELIMIT, FLOOR = "envoyproxy/ratelimit /json", "bare httptools"
#: Rounds by number of callers, and the seconds each contender has in one.
ROUNDS = {50: 9, 1: 9}
ROUND_S = 0.5
TENANTS = 2_000
MAX_S = 240
#: How often a contender is measured in one round until Redis has made all decisions. Then the run fails.
MOST_TRIES = 12


class Contender(NamedTuple):
    kind: Kind
    pid: int
    port: int


class Cost(NamedTuple):
    """Microseconds of CPU per pair, and pairs per second."""

    server_us: float
    redis_us: float
    per_s: float


def start(stack: ExitStack, command: list[str], environment: dict[str, str], log: Path) -> tuple[int, int]:
    """A process that prints where it listens, killed with the stack; its number and its port."""
    with log.open("wb") as errors:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=PROJECT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        )
    stack.callback(process.kill)
    assert process.stdout is not None
    found = re.search(r":(\d+)$", process.stdout.readline().strip())
    if found is None:
        raise SystemExit(f"{command[0]} did not start: {last_lines(log)}")
    return process.pid, int(found[1])


def start_sidecar(stack: ExitStack, url: str, folder: Path) -> tuple[int, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    environment |= {
        "FUSEBOARD_REDIS_URL": url,
        "FUSEBOARD_SERVER": "bench",
        "FUSEBOARD_STATE_DIR": str(folder),
        "FUSEBOARD_ENVIRONMENT": ENVIRONMENT,
    }
    options = ["--listen", "127.0.0.1:0", "--no-token", "--probes", "off"]
    return start(stack, ["fuseboard", "sidecar", *options], environment, folder.with_suffix(".log"))


def start_ratelimit(stack: ExitStack, valkey: Valkey, folder: Path) -> tuple[int, int]:
    """envoyproxy/ratelimit with one limit that admits everything. Raises ``Skip``."""
    program = shutil.which(os.environ.get(VARIABLE) or "ratelimit")
    if program is None:
        raise Skip(f"{VARIABLE} names no program of envoyproxy/ratelimit")
    limits = folder / "bench/config"
    limits.mkdir(parents=True)
    unit = "{ unit: second, requests_per_unit: 50000000 }"
    key = f"key: {ENTRY['key']}, value: {ENTRY['value']}"
    (limits / "bench.yaml").write_text(f"domain: {DOMAIN}\ndescriptors: [{{ {key}, rate_limit: {unit} }}]\n")
    ports = {name: str(free_port()) for name in ("PORT", "GRPC_PORT", "DEBUG_PORT")}
    environment = (
        os.environ
        | ports
        | {
            **dict.fromkeys(("HOST", "GRPC_HOST", "DEBUG_HOST"), "127.0.0.1"),
            "LOG_LEVEL": "error",
            "USE_STATSD": "false",
            "RUNTIME_ROOT": str(folder),
            "RUNTIME_SUBDIRECTORY": "bench",
            "RUNTIME_WATCH_ROOT": "false",
            "BACKEND_TYPE": "redis",
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": f"127.0.0.1:{valkey.port}",
            "REDIS_AUTH": valkey.password,
        }
    )
    log = folder / "log"
    with log.open("wb") as output:
        process = stack.enter_context(
            subprocess.Popen([program], env=environment, stdout=output, stderr=output)
        )
    stack.callback(process.kill)
    port = int(ports["PORT"])
    wait_until(lambda: process.poll() is not None or _listens(process.pid, port), "ratelimit to listen")
    if process.poll() is not None:
        raise Skip(f"it did not start: {last_lines(log, count=1)}")
    return process.pid, port


def _listens(pid: int, port: int) -> bool:
    return any(one.laddr.port == port for one in psutil.Process(pid).net_connections("tcp"))


def compare(bars: Bars, contenders: dict[str, Contender], redis_pid: int) -> None:
    for callers, rounds in ROUNDS.items():
        costs = measure(contenders, callers, rounds, redis_pid)
        say(f"{callers} callers, us of CPU per pair (of the server, of Redis), and pairs/s:")
        for name, found in costs.items():
            server_us, redis_us, per_s = (statistics.median(figures) for figures in zip(*found, strict=True))
            say(f"  {name:28}{server_us:8.1f}{redis_us:8.1f}{per_s:10,.0f}")
        sums = {name: [one.server_us + one.redis_us for one in found] for name, found in costs.items()}
        report(bars, callers, sums)


def measure(
    contenders: dict[str, Contender], callers: int, rounds: int, redis_pid: int
) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    # The first round warms up.
    for number in range(-1, rounds):
        # In another order each time: a neighbour of the machine may come and go with the same beat.
        for name in random.sample(list(contenders), len(contenders)):
            cost = cost_of(name, contenders[name], callers, redis_pid)
            if number >= 0:
                costs[name].append(cost)
    return costs


def cost_of(name: str, contender: Contender, callers: int, redis_pid: int) -> Cost:
    """The cost of a pair. It is measured again if a decision was made without Redis, which is cheaper."""
    for _ in range(MOST_TRIES):
        before = cpu_of_all_threads(contender.pid), cpu_of_all_threads(redis_pid)
        pairs, local = asyncio.run(drive(contender.port, contender.kind, callers, ROUND_S))
        after = cpu_of_all_threads(contender.pid), cpu_of_all_threads(redis_pid)
        if not local:
            server_s, redis_s = (now - then for then, now in zip(before, after, strict=True))
            return Cost(1e6 * server_s / pairs, 1e6 * redis_s / pairs, pairs / ROUND_S)
    raise DecidedLocallyError(f"{name}: {local} decisions were made without Redis: the machine is too busy")


def report(bars: Bars, callers: int, costs: dict[str, list[float]]) -> None:
    def ratio(name: str, rival: str) -> float:
        return statistics.median(one / other for one, other in zip(costs[name], costs[rival], strict=True))

    for suffix, name, most in (("", SIDECAR, {50: 0.55, 1: 0.75}[callers]), ("_carried", CARRIED, 0.5)):
        line = f"sidecar_pair{suffix}_vs_json_{callers}"
        if RATELIMIT in costs:
            bars.ratio_at_most(line, ratio(name, RATELIMIT), most)
        else:
            bars.skipped(line, "no program of envoyproxy/ratelimit ran: see docs/benchmarks.md")
    if callers == 50:
        bars.ratio_at_most("sidecar_pair_vs_httptools_50", ratio(SIDECAR, FLOOR), 4)


async def ask_tenants(port: int) -> None:
    """One request of each tenant."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(TENANTS):
        writer.write(
            request("/v1/requests", {"tenant": f"tenant-{number:04}", "subject": {"endpoint": "GET /"}})
        )
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        if b'"allowed":true' not in body:
            raise SystemExit(f"tenant {number} was answered {head[:60]!r} {body[:200]!r}")
    writer.close()
    await writer.wait_closed()


def memory(bars: Bars, url: str, folder: Path) -> None:
    with ExitStack() as stack:
        pid, port = start_sidecar(stack, url, folder)
        begun = psutil.Process(pid).memory_info().rss / 2**20
        asyncio.run(ask_tenants(port))
        mib = psutil.Process(pid).memory_info().rss / 2**20
    say(f"memory of a sidecar: {begun:.1f} MiB at its start, {mib:.1f} MiB after {TENANTS:,} tenants")
    bars.ratio_at_most("sidecar_memory", mib, 48)


def main() -> int:
    within(MAX_S)
    bars = Bars()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "valkey").mkdir(mode=0o700)
        valkey = Valkey(folder / "valkey")
        valkey.start()
        stack.callback(valkey.stop)
        assert valkey.process is not None
        with redis.Redis.from_url(valkey.url) as limits:
            publish(limits, ours.policy(ENVIRONMENT, ours.PATIENT), revision=1)
        memory(bars, valkey.url, folder / "first")
        sidecar = start_sidecar(stack, valkey.url, folder / "second")
        floor = start(stack, ["tools.bench.http_pairs.floor"], dict(os.environ), folder / "floor.log")
        contenders = {
            SIDECAR: Contender("two requests", *sidecar),
            CARRIED: Contender("carried", *sidecar),
            FLOOR: Contender("two requests", *floor),
        }
        try:
            rival = start_ratelimit(stack, valkey, folder / "ratelimit")
            contenders[RATELIMIT] = Contender("json", *rival)
        except Skip as reason:
            say(f"{RATELIMIT}: {reason}")
        compare(bars, contenders, valkey.process.pid)
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
