"""What the agent costs each process of a user: CPU and memory of its import and of its start, beside v0.1.0.

Version 0.1.0 comes from the history into a temporary folder, and runs in the same environment. Each run is a
process of its own, the two take turns, and all bytecode is there before: what counts is the work of a start.
Memory is what the import adds to an empty interpreter, so that the size of Python counts for neither.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from controlplane.embedded.valkey import Valkey
from tests.contract.compat.release import FIRST, unpack

PROJECT = Path(__file__).resolve().parents[2]
ROUNDS = 15
#: The first rounds fill the caches of the system.
WARM_UP = 2

#: Prints CPU seconds of this process, and the memory that its steps added, in KB.
_MEASURE = """
import sys, time
def rss():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = rss()
import fuseboard.agent
if len(sys.argv) > 1:
    import asyncio
    from fuseboard.settings import AgentSettings
    async def start():
        settings = AgentSettings(redis_url=sys.argv[1], server="bench")
        async with fuseboard.agent.Agent(settings=settings) as agent:
            decision = await agent.admit_request("acme")
            assert decision.allowed and decision.mode == "shared", decision
    asyncio.run(start())
print(time.process_time(), rss() - before)
"""

#: Name -> how much of what v0.1.0 costs is allowed.
BARS = {"import_cpu": 0.6, "import_memory": 0.65, "start_cpu": 0.6, "start_memory": 0.65}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        try:
            older = unpack(Path(folder), FIRST.commit) / "agents"
        except subprocess.CalledProcessError:
            for name, bar in BARS.items():
                sys.stdout.write(f"RATIO {name} skipped: this checkout has no history (bar <= {bar:g})\n")
            return 0
        trees = {"older": older, "current": PROJECT / "agents"}
        for tree in trees.values():
            subprocess.run(
                [sys.executable, "-m", "compileall", "-q", tree], check=True, env=_environment(tree)
            )
        redis = Path(folder) / "redis"
        redis.mkdir()
        server = Valkey(redis)
        server.start()
        try:
            costs = _measure(trees, server.url)
        finally:
            server.stop()
    sys.stdout.write(f"older: version {FIRST.version}, commit {FIRST.commit[:7]}\n")
    missed = []
    for name, bar in BARS.items():
        older_cost, cost = (statistics.median(costs[tree, name]) for tree in trees)
        unit, scale = ("MB", 1024) if "memory" in name else ("ms", 0.001)
        ratio = float(f"{cost / older_cost:.3g}")
        sys.stdout.write(f"{name}: {older_cost / scale:.1f} {unit} then, {cost / scale:.1f} {unit} now\n")
        sys.stdout.write(f"RATIO {name} {ratio:g} (bar <= {bar:g})\n")
        if ratio > bar:
            missed.append(name)
    if missed:
        sys.stderr.write(f"Missed: {', '.join(missed)}\n")
    return 1 if missed else 0


def _measure(trees: dict[str, Path], redis_url: str) -> dict[tuple[str, str], list[float]]:
    costs: dict[tuple[str, str], list[float]] = {}
    for turn in range(-WARM_UP, ROUNDS):
        for name, tree in trees.items():
            for step, arguments in (("import", []), ("start", [redis_url])):
                command = [sys.executable, "-c", _MEASURE, *arguments]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=_environment(tree), cwd=tree
                )
                if done.returncode:
                    raise SystemExit(f"{name}, {step}: {done.stderr}")
                if turn >= 0:
                    cpu, memory = map(float, done.stdout.split())
                    costs.setdefault((name, f"{step}_cpu"), []).append(cpu)
                    costs.setdefault((name, f"{step}_memory"), []).append(memory)
    return costs


def _environment(tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(tree)}


if __name__ == "__main__":
    sys.exit(main())
