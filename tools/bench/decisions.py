"""The cost of one decision, beside the libraries that a team would use instead.

Contenders take turns in one process, in many short rounds, and ratios are computed pair by pair: on a
shared machine those are stable, and wall time is not. Run it as ``python tools/bench/decisions.py``;
the peers are installed into ``.venv-bench`` the first time. ``docs/benchmarks.md`` explains each line.
"""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
ENVIRONMENT = PROJECT / ".venv-bench"
REQUIREMENTS = "requirements/bench.txt"


def main() -> int:
    if Path(sys.prefix) != ENVIRONMENT:
        command = ["sh", "tools/environment.sh", ENVIRONMENT.name, REQUIREMENTS]
        subprocess.run(command, cwd=PROJECT, check=True)
        sys.stdout.flush()
        python = str(ENVIRONMENT / "bin" / "python")
        # The agent is measured from this tree, not from a wheel.
        paths = os.pathsep.join([str(PROJECT), str(PROJECT / "agents")])
        os.execve(python, [python, __file__, *sys.argv[1:]], os.environ | {"PYTHONPATH": paths})  # noqa: S606
    from tools.bench.side_by_side import contest

    return contest.main()


if __name__ == "__main__":
    sys.exit(main())
