"""What a beat costs the gateway, beside other ways to take one; and a fleet of 10,000 pods.

All are served by uvicorn with the same options, each in a process of its own, in turns: ``manage.py
gateway`` with its token check, validation, fleet and flushes into a real Postgres; a bare ASGI
application that reads its body and answers; a stock django-ninja endpoint that keeps a row; and
``unleash-server`` from npm, asked for what has not changed. Counted are answers per second of the
serving process's own CPU time. Run it as ``python tests/bench/gateway.py``.
"""

import asyncio
import os
import resource
import socket
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.pods import SERVERS, Refused, beat_template, drive, fleet
from control_plane.processes import cpu_s, make_token, start, wait_until_ready
from control_plane.stand import PROJECT, Bars, control_plane, say, within
from control_plane.unleash import Skip, poll, start_unleash

ROUNDS = 7
ROUND_S = 1.5
#: Driven before anything is counted: between two of its turns a fleet has fallen silent.
WARM_S = 0.5
PODS = 10_000
PACE_S = 5.0
FLEET_S = 10.0
#: Of the whole script; a quiet machine needs a quarter of it.
MOST_S = 420
#: As long as the gateway's.
ANSWER = b'{"padding":"%b"}' % (b"." * 190)


async def bare(scope, receive, send):
    """The least that reads a body and answers."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def serve_bare():
    import uvicorn

    sys.path.insert(0, str(PROJECT))
    from controlplane.gateway.wire.serving import BACKLOG, uvicorn_config

    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        say(f"Serving http://127.0.0.1:{listener.getsockname()[1]}/")
        config = uvicorn_config(bare, http="httptools")
        config.lifespan = "off"
        uvicorn.Server(config).run(sockets=[listener])


def measure(process, port, request, **answer):
    """Answers per second of the process's CPU time."""
    asyncio.run(drive(port, request, WARM_S, **answer))
    before = cpu_s(process)
    answers = asyncio.run(drive(port, request, ROUND_S, **answer))
    return answers / (cpu_s(process) - before)


def compare(bars, stack, gateway, gateway_port, beat):
    rivals = {
        "bare": (*start(stack, [__file__, "--serve-bare"], os.environ), beat, {}, 0.55),
        "ninja": (
            *start(stack, [str(Path(__file__).parent / "control_plane" / "ninja_rival.py")], os.environ),
            beat.replace(b"POST /agent/v1/sync", b"POST /api/sync", 1),
            {"ending": b"0\r\n\r\n"},  # Django sends it in chunks
            20,
        ),
    }
    skipped = {}
    try:
        process, port = start_unleash(stack)
        rivals["unleash"] = (
            process, port, poll(port), {"ending": b"\r\n\r\n", "statuses": b"HTTP/1.1 304"}, 8,
        )  # fmt: skip
    except Skip as reason:
        skipped["unleash"] = reason
    rates = {name: [] for name in (*rivals, "gateway")}
    for _ in range(ROUNDS):
        rates["gateway"].append(measure(gateway, gateway_port, beat))
        for name, (process, port, request, answer, _) in list(rivals.items()):
            try:
                rates[name].append(measure(process, port, request, **answer))
            except Refused as reason:
                skipped[name] = reason
                del rivals[name]
    size = len(beat.split(b"\r\n\r\n", 1)[1])
    say(f"{size:,} bytes of beat, {SERVERS:,} servers; answers per second of CPU:")
    for name in (*rivals, "gateway"):
        say(f"  {name:8} {statistics.median(rates[name]):10,.0f}")
    for name, (*_, bar) in rivals.items():
        ratios = [ours / other for ours, other in zip(rates["gateway"], rates[name], strict=True)]
        bars.ratio(f"gateway_vs_{name}", statistics.median(ratios), bar)
    for name, reason in skipped.items():
        bars.skipped(f"gateway_vs_{name}", reason)


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
        raise SystemExit("no beat was answered, the machine is too busy")
    took.sort()
    cores = (used[1] - used[0]) / FLEET_S
    say(
        f"{pods:,} pods every {PACE_S:.0f} s: {len(took) / FLEET_S:,.0f} beats/s accepted,"
        f" {len(refused)} refused, {cores:.2f} cores, p50 {took[len(took) // 2] * 1000:.1f} ms"
    )
    bars.at_most("fleet_p99", took[int(len(took) * 0.99)] * 1000, 20, "ms")
    bars.none("fleet_refused", len(refused), "beats")


def main():
    within(MOST_S)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bars = Bars()
    with control_plane():
        make_token()
        with ExitStack() as stack:
            gateway, port = start(stack, ["manage.py", "gateway", "--port", "0"], os.environ)
            whole_fleet(bars, gateway, port, beat_template(wait_until_ready(port)))
        with ExitStack() as stack:
            # One token takes here what a fleet would spread over minutes.
            generous = {"FUSEBOARD_TOKEN_RATE_PER_S": "1000000", "FUSEBOARD_TOKEN_BURST": "1000000"}
            gateway, port = start(stack, ["manage.py", "gateway", "--port", "0"], os.environ | generous)
            compare(bars, stack, gateway, port, beat_template(wait_until_ready(port)))
    return bars.status


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve-bare"]:
        serve_bare()
    else:
        sys.exit(main())
