"""What a heartbeat costs the gateway, beside other ways to take one; and a fleet of 10,000 pods.

Each contender runs in a process of its own, and they take turns: ``manage.py gateway`` with its
token check, validation, fleet and flushes into a real Postgres; the same of v0.1.0, from the
history; a stock django-ninja endpoint that stores a row; and ``unleash-server`` from npm, asked for
what has not changed. A rate is answers per second of the serving process's own CPU time. Run it as
``python tools/bench/gateway.py``.
"""

import asyncio
import os
import resource
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.older_gateway import start_older_gateway
from control_plane.pods import SERVERS, Refused, beat_template, drive, fleet
from control_plane.processes import cpu_s, make_token, start, wait_until_ready
from control_plane.stand import Bars, Skip, control_plane, say, within
from control_plane.unleash import poll, start_unleash

ROUNDS = 7
ROUND_S = 1.5
#: Driven before anything is counted: between two of its turns a fleet has fallen silent.
WARM_S = 0.5
PODS = 10_000
PACE_S = 5.0
FLEET_S = 10.0
#: Of the whole script; a quiet machine needs a quarter of it.
MAX_S = 420
#: All pods are new here at once.
AT_ONCE = {"FUSEBOARD_NEW_PODS_PER_MIN": "1000000"}
#: One token takes here what a fleet would spread over minutes.
GENEROUS = AT_ONCE | {"FUSEBOARD_TOKEN_RATE_PER_S": "1000000", "FUSEBOARD_TOKEN_BURST": "1000000"}


class Contender(NamedTuple):
    process: Any
    port: int
    request: bytes
    #: How its answers look, for ``drive``.
    answer: dict[str, bytes] = {}  # noqa: RUF012 - never changed


def measure(contender):
    """Answers per second of the process's CPU time."""
    process, port, request, answer = contender
    asyncio.run(drive(port, request, WARM_S, **answer))
    before = cpu_s(process)
    answers = asyncio.run(drive(port, request, ROUND_S, **answer))
    if not answers:
        raise SystemExit("no request was answered in a round, the machine is too busy")
    return answers / (cpu_s(process) - before)


def start_gateway(stack):
    process, port = start(stack, ["manage.py", "gateway", "--port", "0"], os.environ | GENEROUS)
    return Contender(process, port, beat_template(wait_until_ready(port)))


def start_v010(stack):
    process, port = start_older_gateway(stack, os.environ | GENEROUS)
    return Contender(process, port, beat_template(wait_until_ready(port)))


def start_ninja(stack, beat):
    script = Path(__file__).parent / "control_plane" / "ninja_rival.py"
    process, port = start(stack, [str(script)], os.environ)
    request = beat.replace(b"POST /agent/v1/sync", b"POST /api/sync", 1)
    # Django sends the answer in chunks.
    return Contender(process, port, request, {"ending": b"0\r\n\r\n"})


def start_polled(stack):
    process, port = start_unleash(stack)
    return Contender(process, port, poll(port), {"ending": b"\r\n\r\n", "statuses": b"HTTP/1.1 304"})


def compare(bars, stack):
    gateway = start_gateway(stack)
    contenders, skipped = {"gateway": gateway, "ninja": start_ninja(stack, gateway.request)}, {}
    for name, start_one in (("v010", start_v010), ("unleash", start_polled)):
        try:
            contenders[name] = start_one(stack)
        except Skip as reason:
            skipped[name] = reason
    rates = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, contender in list(contenders.items()):
            try:
                rates[name].append(measure(contender))
            except Refused as reason:
                skipped[name] = reason
                del contenders[name]
    size = len(gateway.request.split(b"\r\n\r\n", 1)[1])
    say(f"{size:,} bytes of heartbeat, {SERVERS:,} pods; answers per second of CPU:")
    for name in contenders:
        say(f"  {name:8} {statistics.median(rates[name]):10,.0f}")
    if "v010" in contenders:
        bars.ratio_at_most("gateway_cpu_vs_v010", median_ratio(rates["v010"], rates["gateway"]), 4)
    for name, bar in (("ninja", 20), ("unleash", 3)):
        if name in contenders:
            bars.ratio(f"gateway_vs_{name}", median_ratio(rates["gateway"], rates[name]), bar)
    for name, reason in skipped.items():
        bars.skipped("gateway_cpu_vs_v010" if name == "v010" else f"gateway_vs_{name}", reason)


def median_ratio(numerators, denominators):
    """The median over rounds, in which both ran one after the other."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def whole_fleet(bars, gateway, port, beat):
    used = []
    took, refused, pods = asyncio.run(
        fleet(
            port,
            beat,
            pods=PODS,
            pace_s=PACE_S,
            seconds=FLEET_S,
            measured=lambda: used.append(cpu_s(gateway)),
        )
    )
    if not took:
        raise SystemExit("no heartbeat was answered, the machine is too busy")
    took.sort()
    cores = (used[1] - used[0]) / FLEET_S
    say(
        f"{pods:,} pods every {PACE_S:.0f} s: {len(took) / FLEET_S:,.0f} heartbeats/s accepted,"
        f" {len(refused)} refused, p50 {took[len(took) // 2] * 1000:.1f} ms"
    )
    bars.at_most("fleet_cores", cores, 1, "cores")
    bars.at_most("fleet_p99", took[int(len(took) * 0.99)] * 1000, 20, "ms")
    bars.none("fleet_refused", len(refused), "heartbeats")


def main():
    within(MAX_S)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bars = Bars()
    with control_plane():
        make_token()
        with ExitStack() as stack:
            gateway, port = start(stack, ["manage.py", "gateway", "--port", "0"], os.environ | AT_ONCE)
            whole_fleet(bars, gateway, port, beat_template(wait_until_ready(port)))
        with ExitStack() as stack:
            compare(bars, stack)
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
