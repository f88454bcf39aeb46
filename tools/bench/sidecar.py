"""What a call costs that a sidecar guards, beside envoyproxy/ratelimit's ``/json`` and a bare HTTP server.

A pair is the question whether a call may be made, and the report of its outcome. Its cost is the CPU of the
serving process and of Redis, whose limit is never leased: every question asks Redis. ``RATELIMIT_SERVER``
names the program of envoyproxy/ratelimit, if it is not in ``PATH``.

Run it as ``python tools/bench/sidecar.py``.
"""

import asyncio
import random
import re
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import redis

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, Skip, say, within

from controlplane.embedded.valkey import Valkey
from tests.agents.published import ENVIRONMENT, publish
from tools.bench.http_pairs.callers import Kind, drive, request
from tools.bench.http_pairs.processes import start_floor, start_ratelimit, start_sidecar
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

    # docs/adr, decision 0065
    for suffix, name, most in (
        ("", SIDECAR, {50: 0.7, 1: 1.4}[callers]),
        ("_carried", CARRIED, {50: 0.5, 1: 1.3}[callers]),
    ):
        line = f"sidecar_pair{suffix}_vs_json_{callers}"
        if RATELIMIT in costs:
            bars.ratio_at_most(line, ratio(name, RATELIMIT), most)
        else:
            bars.skipped(line, "no program of envoyproxy/ratelimit ran: see docs/benchmarks.md")
    if callers == 50:
        bars.ratio_at_most("sidecar_pair_vs_httptools_50", ratio(SIDECAR, FLOOR), 4.3)


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
        pid, port, _ = start_sidecar(stack, url, folder)
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
        floor = start_floor(stack, folder / "floor")
        contenders = {
            SIDECAR: Contender("two requests", sidecar.pid, sidecar.port),
            CARRIED: Contender("carried", sidecar.pid, sidecar.port),
            FLOOR: Contender("two requests", floor.pid, floor.port),
        }
        try:
            rival = start_ratelimit(stack, valkey, folder / "ratelimit")
            contenders[RATELIMIT] = Contender("json", rival.pid, rival.port)
        except Skip as reason:
            say(f"{RATELIMIT}: {reason}")
        compare(bars, contenders, valkey.process.pid)
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
