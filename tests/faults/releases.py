"""The whole of ``test_replaced.py``, as a process with Django: ``python -m tests.faults.releases folder``.

It prints what callers and editors saw. If anything is wrong, it prints that first, and exits with 1.
"""

import sys
from pathlib import Path

import django

django.setup()

from tests.controlplane.processes.replacing import (  # noqa: E402
    formation,
    last_release,
    roll_back,
    start,
    upgrade,
)

CALLS, EDITS = 10_000, 50


def main(folder: Path) -> int:
    before = last_release(folder)
    with formation(folder, setup=before, fresh=True) as world:
        start(world, before, limit=2 * CALLS * 9 // 10)
        upgrade(world, before, calls=CALLS, edits=EDITS, migrate=True)
        roll_back(world, before, calls=CALLS, edits=EDITS)
        found = list(world.problems())
        sys.stdout.write("; ".join([*found, str(world.figures)]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
