"""What callers saw, and what was charged for it."""

import time

from tests.faults.field import Broken, Field
from tests.waiting import wait_until

#: The ordinary work of a pod: every call asks Redis.
WORK = ["t:acme", "d:open-road", "t:ledger"]


class Callers:
    """What all callers of all pods saw since ``begin_anew``; errors and defects fail at once."""

    def __init__(self, field: Field) -> None:
        found = [pod.figures() for pod in field.pods if pod.alive]
        self.calls = sum(one["calls"] for one in found)
        self.dropped = sum(one["dropped"] for one in found)
        self.waited = sum(one["waited"] for one in found)
        self.over_50_ms = sum(one["over_50_ms"] for one in found)
        self.slowest_ms = 1000 * max(one["slowest_s"] for one in found)
        self.changes = [len(one["modes"]) for one in found]
        self.per_s = sum(one["calls"] / one["seconds"] for one in found)
        #: The part of the time in which the busiest pod's loop did not run.
        self.lag = max(min(1.0, one["lag_s"] / one["seconds"]) for one in found)
        errors = {text: n for one in found for text, n in one["errors"].items()}
        if errors:
            raise Broken(f"callers saw exceptions: {errors}")

    def __str__(self) -> str:
        return f"{self.calls} calls, {self.waited} waited, slowest {self.slowest_ms:.0f} ms net"

    def none_over_50_ms(self) -> None:
        if self.over_50_ms:
            raise Broken(f"{self.over_50_ms} of {self.calls} calls delayed over 50 ms net; {self}")


def used(field: Field) -> int:
    """What Redis has counted for the ledger; the question itself is not in it."""
    # On a busy machine one may be late: then it is decided locally, by what was known before.
    answer = wait_until(
        lambda: field.pods[0].ask("t:ledger"),
        "the ledger from Redis",
        every_s=0.1,
        accept=lambda answer: answer["source"] == "s" and answer["remaining"] is not None,
    )
    return int(answer["limit"] - answer["remaining"]) - 1


def granted(field: Field) -> int:
    """What Redis granted to pods at the cost of the ledger."""
    return sum(
        target == "t:ledger" and source == "s"
        for pod in [*field.pods, *field.others]
        for _, target, source in pod.history()
    )


class Ledger:
    """Compares what Redis charged with what callers were granted, from here on. Start it without load."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._used, self._granted = used(field), granted(field) - 1
        self._now = self._used, self._granted

    def __str__(self) -> str:
        charged, granted_now = self._now
        return (
            f"charged {self._used} before, {charged} now; granted {self._granted} before, {granted_now} now"
        )

    def lost(self) -> int:
        """Calls that Redis charged without a grant; below 0, granted without a charge."""
        time.sleep(0.5)  # what is in flight, and what the next settlement gives back
        self._now = charged, granted_now = used(self._field), granted(self._field) - 1
        return (charged - self._used) - (granted_now - self._granted)
