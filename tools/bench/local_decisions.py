"""The cost of one decision without Redis, of this tree beside another one.

Both trees take turns in many short rounds, each in a process of its own, and ratios are of pairs:

    python tools/bench/local_decisions.py /path/to/another/tree
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[2]
ROUNDS = 41

# Without imports of this tree: it runs with the agent of either.
ROUND = """
import sys
from time import perf_counter
from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import FailurePolicy
from fuseboard.without_redis.local_limits import LocalLimits

def demands(policy, limits):
    # A limit that nobody reaches: a token bucket with more room than there are calls.
    quota = Limit(name="requests", limit=10**9, window_ms=60_000, burst=10**8, failure_policy=policy)
    return [
        Demand(
            tuple(LimitRef(quota, f"fb1:production:{{t:{n:020x}}}:quota:r{m}") for m in range(limits)),
            (1,) * limits,
        )
        for n in range(1_000)
    ]

KINDS = {
    "one limit, fail open": demands(FailurePolicy.FAIL_OPEN, 1),
    "one limit, local share": demands(FailurePolicy.LOCAL_SHARE, 1),
    "three limits, local share": demands(FailurePolicy.LOCAL_SHARE, 3),
}
TAKERS = {kind: LocalLimits(lambda: 3, fleet_offset_s=lambda: 1.7e9) for kind in KINDS}
for line in sys.stdin:
    kind = line.strip()
    take, every = TAKERS[kind].take, KINDS[kind]
    began = perf_counter()
    for _ in range(10):
        for demand in every:
            take(demand, 1.0)
    print((perf_counter() - began) / 10_000 * 1e9, flush=True)
"""


def tree(path: Path) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(path / "agents")}
    return subprocess.Popen(
        [sys.executable, "-c", ROUND],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: "subprocess.Popen[str]", kind: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(kind + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    other = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    ours, theirs = tree(HERE), tree(other)
    for kind in ("one limit, fail open", "one limit, local share", "three limits, local share"):
        pairs = [(ask(theirs, kind), ask(ours, kind)) for _ in range(ROUNDS)][1:]
        before, after = median(one for one, _ in pairs), median(two for _, two in pairs)
        ratio = median(two / one for one, two in pairs)
        sys.stdout.write(f"{kind}: {before:.0f} ns before, {after:.0f} ns after, ratio {ratio:.3f}\n")
    for process in (ours, theirs):
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()
