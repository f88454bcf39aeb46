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
    replace_at_once,
    roll_back,
    start,
    this_release,
    upgrade,
)

CALLS, EDITS = 10_000, 50
#: Upgrades and rollbacks.
TIMES = 4


def main(folder: Path) -> int:
    before = last_release()
    with formation(folder, setup=before, fresh=True) as world:
        start(world, before, limit=TIMES * CALLS * 9 // 10)
        upgrade(world, before, calls=CALLS, edits=EDITS, migrate=True)
        roll_back(world, before, calls=CALLS, edits=EDITS)
        for release in (this_release(), before):
            replace_at_once(world, release, calls=CALLS, edits=EDITS)
        found = list(world.problems())
        sys.stdout.write("; ".join([*found, str(world.figures)]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
