"""How soon an edit applies in every pod: real agents in a separate process, with push and without.

Without push the pods have no Redis, and get the edit with their next heartbeat.
"""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from control_plane.processes import TOKEN, make_token, start, wait_until_ready
from control_plane.stand import PROJECT, bench, say

PODS = 10
EDITS = {"push": 40, "poll": 12}
#: The heartbeat interval of pods without push; agents add up to a fifth.
BEAT_MS = 1_000


async def run_pods(url, redis_url):
    """Print ``pod revision time`` whenever a pod decides by a newer revision."""
    import fuseboard
    from fuseboard.settings import AgentSettings

    agents = []
    for n in range(PODS):
        settings = AgentSettings(
            redis_url=redis_url, url=url, token=TOKEN, service="bench", server=f"bench-{n}", boot_http_s=3.0
        )
        agents.append(fuseboard.Agent(settings=settings))
    for agent in agents:
        await agent.start()
    seen = [0] * PODS
    while True:
        for n, agent in enumerate(agents):
            revision = agent.configuration.snapshot.head.revision
            if revision != seen[n]:
                seen[n] = revision
                sys.stdout.write(f"{n} {revision} {time.monotonic()}\n")
        sys.stdout.flush()
        await asyncio.sleep(0.001)


def enforced_ms(bars, keys):
    """Print percentiles over edits and pods, from the call of the edit function."""
    make_token()
    environment = os.environ | {"FUSEBOARD_BEAT_MS": str(BEAT_MS)}
    with ExitStack() as stack:
        _, port = start(stack, ["manage.py", "gateway", "--port", "0"], environment)
        wait_until_ready(port)
        url = f"http://127.0.0.1:{port}"
        for way, redis_url in (
            ("push", os.environ["FUSEBOARD_REDIS_URL"]),
            ("poll", "redis://127.0.0.1:1/0"),
        ):
            found = environment | {"PYTHONPATH": str(Path(__file__).parents[1])}
            command = [sys.executable, str(Path(__file__)), url, redis_url]
            pods = stack.enter_context(
                subprocess.Popen(
                    command,
                    cwd=PROJECT,
                    env=found,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(pods.kill)
            took = _edits(pods.stdout, keys, EDITS[way])
            pods.kill()
            p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
            say(f"edit to enforced on {PODS} pods with {way}: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
            # An agent returns after its interval and a fifth, and the edit itself takes a moment.
            bars.at_most(
                f"edit_to_enforced_{way}_p99", p99, 500 if way == "push" else BEAT_MS * 1.2 + 100, "ms"
            )


def _edits(lines, keys, count):
    from controlplane.editing import edits

    _wait_for(lines, lambda revision: revision > 0)
    took = []
    for n in range(count):
        begun = time.monotonic()
        revision = edits.set_tenant_quota(
            environment="production",
            tenant=keys[n],
            quota="requests",
            limit=5_000 + n,
            window_s=60,
            burst=10,
            expected_version=None,
            reason="a benchmark",
            actor=bench(),
        )
        took += [(at - begun) * 1000 for at in _wait_for(lines, lambda seen, r=revision: seen >= r)]
    return sorted(took)


def _wait_for(lines, fits):
    """When each pod first had a matching revision."""
    found = {}
    while len(found) < PODS:
        pod, revision, at = lines.readline().split()
        if fits(int(revision)):
            found.setdefault(pod, float(at))
    return list(found.values())


if __name__ == "__main__":
    asyncio.run(run_pods(*sys.argv[1:]))
