"""Play the matrix: ``python -m tests.faults [row ...]``; rows by number or name, all without any."""

import signal
import sys
import time
from types import FrameType

from tests.faults.field import field
from tests.faults.matrix import Verdict, play
from tests.faults.rows import ROWS


def main(wanted: list[str]) -> int:
    began = time.monotonic()
    rows = [one for one in ROWS if not wanted or one.number in wanted or one.name in wanted]
    verdicts: list[Verdict] = []
    while len(verdicts) < len(rows):
        with field(short=False) as world:
            say(f"everything runs after {time.monotonic() - began:.1f} s")
            # A row that leaves a world nobody can heal gets the next one a new world.
            while world.healthy and len(verdicts) < len(rows):
                verdicts.append(play(rows[len(verdicts)], world))
                say(str(verdicts[-1]))
    failed = sum(verdict.word == "FAIL" for verdict in verdicts)
    say(f"{len(rows) - failed} of {len(rows)} rows, {time.monotonic() - began:.0f} s")
    return 1 if failed or not rows else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # However it ends, everything it started must be stopped.
    signal.signal(signal.SIGTERM, _stop)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
