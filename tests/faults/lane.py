"""One world in a separate process: runs the rows it is given, one name per line, and reports each result.

``python -m tests.faults.lane`` answers with one JSON object per line; the first reports that its
world runs. After a row that leaves a world broken, the next row gets a new world.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

from controlplane.embedded.children import kill_group
from controlplane.installation import FOLDER as PROJECT
from tests.faults.field import field
from tests.faults.matrix import Row, Verdict, play
from tests.faults.rows import ROWS

#: The time in which everything that a world has started must end.
GOODBYE_S = 40.0


def main() -> None:
    rows = {row.name: row for row in ROWS}
    began, name = time.monotonic(), ""
    while True:
        with field(short=False) as world:
            if not name:
                _say({"ready_s": time.monotonic() - began})
                name = _read()
            while name and world.healthy:
                verdict = play(rows[name], world)
                _say({"word": verdict.word, "said": verdict.said, "took_s": verdict.took_s})
                name = _read()
        if not name:
            return


def _read() -> str:
    """The next row; empty when there is none."""
    return sys.stdin.readline().strip()


def _say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class LaneEnded(Exception):
    status: int


class Lane:
    """The other end of such a process."""

    def __init__(self) -> None:
        # In a separate process group: Ctrl-C goes to the parent, which then sends it once.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.lane"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=PROJECT,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> float:
        """Wait until its world runs; return the seconds that took. Raises ``LaneEnded``."""
        return float(self._listen()["ready_s"])

    def play(self, row: Row) -> Verdict:
        began = time.monotonic()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(row.name + "\n")
            self._process.stdin.flush()
            return Verdict(row=row, **self._listen())
        except (LaneEnded, OSError) as error:
            return Verdict("FAIL", row, f"its world ended: {error!r}", time.monotonic() - began)

    def _listen(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LaneEnded(self._process.wait())
        words: dict[str, Any] = json.loads(line)
        return words

    def stop(self, *, at_once: bool) -> None:
        """Everything it started ends with it; ``at_once``: in the middle of a row, too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if at_once:
                self._process.terminate()
            self._process.stdin.close()
            self._process.wait(GOODBYE_S)
        except (OSError, subprocess.TimeoutExpired):
            kill_group(self._process)
            self._process.wait()
        self._process.stdout.close()


def stop_on_sigterm() -> None:
    """However this process ends, everything it started must be stopped."""

    def stop(number: int, frame: FrameType | None) -> None:
        # Once: a shutdown in progress must not be interrupted.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


if __name__ == "__main__":
    stop_on_sigterm()
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
