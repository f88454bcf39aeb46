"""A backlog beside job queues on the same Redis: enqueuing jobs one after the other, and finishing them.

Each contender runs in its own environment, because their versions of redis-py exclude each other. Its
program enqueues empty jobs, then a worker with 8 slots finishes them. rq has no slots: its worker that forks
no process for each job runs them one after the other. The contenders take turns; a figure is the median of
the rounds. Run it as ``python tools/bench/backlog.py``.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from controlplane.embedded.valkey import Valkey  # noqa: E402 - the tree is not on the path of a script

JOBS, ROUNDS, MAX_S = 1000, 3, 60
#: Environment of each contender, whose program is in ``tools/bench/queues``.
CONTENDERS = {"backlog": ".venv", "arq": ".venv-arq", "dramatiq": ".venv-dramatiq", "rq": ".venv-rq"}
#: A backlog also decides the call of each job. Its rate, divided by that of the fastest job queue.
BARS = {"enqueued": 0.7, "finished": 1.2}


def measure(name: str, url: str) -> tuple[float, float]:
    """Jobs enqueued, and jobs finished, per second."""
    python = PROJECT / CONTENDERS[name] / "bin" / "python"
    paths = os.pathsep.join([str(PROJECT), str(PROJECT / "agents")])
    done = subprocess.run(
        [str(python), "-m", f"tools.bench.queues.run_{name}", url, str(JOBS)],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=MAX_S,
        check=True,
    )
    enqueued, finished = done.stdout.split()[-2:]
    return JOBS / float(enqueued), JOBS / float(finished)


def main() -> int:
    subprocess.run(["make", "-s", "queue-environments"], cwd=PROJECT, check=True)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            for _ in range(ROUNDS):
                for name in CONTENDERS:
                    rates[name].append(measure(name, server.url))
        finally:
            server.stop()
    medians = {
        name: tuple(statistics.median(rate[part] for rate in every) for part in (0, 1))
        for name, every in rates.items()
    }
    ratios = {}
    for part, word in enumerate(("enqueued", "finished")):
        for name, pair in medians.items():
            print(f"FIGURE {name} {word} {pair[part]:.0f} jobs/s")  # noqa: T201
        best = max(pair[part] for name, pair in medians.items() if name != "backlog")
        ratios[word] = medians["backlog"][part] / best
    for word, ratio in ratios.items():
        print(f"RATIO backlog_{word} {ratio:.2f} (bar >= {BARS[word]})")  # noqa: T201
    return int(any(ratio < BARS[word] for word, ratio in ratios.items()))


if __name__ == "__main__":
    sys.exit(main())
