"""Run the matrix: ``python -m tests.faults [row ...]``; rows by number or name, all by default.

Rows spend most of their time waiting, so many of them run in two worlds at once. Rows that measure
how long callers wait come first, while the other world is idle.
"""

import sys
import time
from collections import deque
from collections.abc import Sequence
from threading import Lock, Thread

from tests.faults.lane import Lane, stop_on_sigterm
from tests.faults.matrix import Row, Verdict
from tests.faults.rows import ROWS

#: Fewer rows run in one world, because a second one takes longer to start.
ENOUGH_FOR_TWO = 8


class Evening:
    """Rows that ran, and their results."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._said = Lock()
        self.lanes: list[Lane] = []
        self.verdicts: list[Verdict] = []

    def play(self) -> None:
        began = time.monotonic()
        self.lanes = [Lane() for _ in range(2 if len(self._rows) >= ENOUGH_FOR_TWO else 1)]
        for lane in self.lanes:
            lane.ready()
        say(f"{len(self.lanes)} of 2 worlds run after {time.monotonic() - began:.1f} s")
        first, *others = self.lanes
        # With two worlds: the first row of this kind runs in the idle one.
        self._play_in(first, deque(row for row in self._rows if row.quiet))
        waiting = deque(row for row in self._rows if not row.quiet)
        threads = [Thread(target=self._play_in, args=(lane, waiting)) for lane in [*others, first]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _play_in(self, lane: Lane, waiting: deque[Row]) -> None:
        while True:
            try:
                row = waiting.popleft()
            except IndexError:
                return
            verdict = lane.play(row)
            with self._said:
                self.verdicts.append(verdict)
                say(str(verdict))

    def end(self, *, at_once: bool) -> None:
        threads = [Thread(target=lane.stop, kwargs={"at_once": at_once}) for lane in self.lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main(wanted: list[str]) -> int:
    began = time.monotonic()
    rows = [one for one in ROWS if not wanted or one.number in wanted or one.name in wanted]
    unknown = [word for word in wanted if not any(word in (one.number, one.name) for one in ROWS)]
    if unknown or not rows:
        say(f"there is no row {', '.join(unknown)}; there are {', '.join(row.name for row in ROWS)}")
        return 2
    evening, ended = Evening(rows), False
    try:
        evening.play()
        ended = True
    finally:
        evening.end(at_once=not ended)
    failed = [verdict.row.name for verdict in evening.verdicts if verdict.word == "FAIL"]
    for verdict in sorted(evening.verdicts, key=lambda one: -one.took_s)[:5] if len(rows) > 5 else ():
        say(f"long: {verdict.row.name} {verdict.took_s:.0f} s")
    say(f"{len(rows) - len(failed)} of {len(rows)} rows, {time.monotonic() - began:.0f} s")
    if failed:
        say(f"FAIL {', '.join(failed)}")
    return 1 if failed else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    stop_on_sigterm()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
