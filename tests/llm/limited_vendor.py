"""A vendor as a process: ``python -m tests.llm.limited_vendor KIND SEED``. Others use its limit, too.

It says its address when it answers, begins with the line that has the moment and the seconds, and ends with
one line of JSON. The rule of each kind is that of the simulations; here its clock is that of the machine.
"""

import heapq
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil
from random import Random

from tests.llm.vendor import Vendor, served
from tools.demo.model_formats import Scenario
from tools.experiments.vendor_fleet import (
    ANSWER_S,
    PER_MINUTE,
    REFUSAL_S,
    Answer,
    AtOnce,
    Bucket,
    FixedMinute,
)
from tools.experiments.vendor_fleet import Vendor as Rule

#: Of the time that is played: it halves its limit, and doubles it again; others take 20 %, and 40 % between.
HALVED, DOUBLED, MORE_OTHERS, FEWER_OTHERS = 1 / 3, 2 / 3, 1 / 6, 1 / 2
#: The others of a vendor that says nothing, and the pause that it makes up for.
SILENT_BURST_S = 6.0
WORDS = 5
LATE_S = 1.0


def allowed(part: float) -> float:
    """Calls a minute."""
    return PER_MINUTE / 2 if HALVED <= part < DOUBLED else PER_MINUTE


def others_per_s(part: float) -> float:
    return (0.4 if MORE_OTHERS <= part < FEWER_OTHERS else 0.2) * allowed(part) / 60


def at_once(part: float) -> float:
    """Calls in progress that give this rate."""
    return allowed(part) / 60 * ANSWER_S


def rule(kind: str, seconds: float) -> Rule:
    """The limit of a vendor whose whole time is ``seconds``."""

    def of(what: Callable[[float], float]) -> Callable[[float], float]:
        return lambda at: what(at / seconds)

    rules: dict[str, Callable[[], Rule]] = {
        "minute": lambda: Bucket(of(allowed)),
        "second": lambda: Bucket(of(allowed), burst_s=1.0),
        "fixed": lambda: FixedMinute(of(allowed)),
        "silent": lambda: Bucket(of(allowed), burst_s=SILENT_BURST_S, silent=True),
        "slots": lambda: AtOnce(of(at_once)),
    }
    return rules[kind]()


class LimitedVendor(Vendor):
    """Each request takes 2 s on average, or is refused at once."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self._kind, self._draw = kind, Random(seed)
        self._lock = threading.Lock()
        self._rule = rule(kind, 1.0)
        self._began = float("inf")
        #: Calls of the pods alone.
        self.refused = 0

    def play(self, began: float, seconds: float) -> None:
        """The others call until the end."""
        with self._lock:
            self._rule, self._began = rule(self._kind, seconds), began
        ends: list[float] = []
        due = self._draw.expovariate(others_per_s(0))
        while due < seconds:
            while ends and ends[0] <= due:
                self._wait(heapq.heappop(ends))
                with self._lock:
                    self._rule.ended()
            self._wait(due)
            # Others do not make up for a pause of the machine.
            due = max(due, self._now() - LATE_S)
            if self._ask().good:
                heapq.heappush(ends, due + ANSWER_S)
            due += self._draw.expovariate(others_per_s(due / seconds))

    def _now(self) -> float:
        return max(0.0, time.monotonic() - self._began)

    def _wait(self, at: float) -> None:
        time.sleep(max(0.0, at - self._now()))

    def _ask(self) -> Answer:
        with self._lock:
            return self._rule.ask(self._now())

    def next_scenario(self, path: str) -> Scenario:
        answer = self._ask()
        headers = _anthropic(answer.headers) if path == "/v1/messages" else answer.headers
        if answer.good:
            return Scenario(words=WORDS, headers=headers, takes_s=ANSWER_S * self._draw.uniform(0.5, 1.5))
        with self._lock:
            self.refused += 1
        if answer.wait_s is not None and answer.headers:
            # Those of Anthropic are whole seconds.
            whole = path == "/v1/messages"
            wait = {"retry-after": str(ceil(answer.wait_s))} if whole else _shortly(answer.wait_s)
            headers = headers | wait
        error = {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "too many"}
        return Scenario(status=429, headers=headers, error=error, takes_s=REFUSAL_S)

    def ended(self, scenario: Scenario) -> None:
        if scenario.status == 200:
            with self._lock:
                self._rule.ended()


def _shortly(wait_s: float) -> dict[str, str]:
    return {"retry-after-ms": str(ceil(wait_s * 1000))}


def _anthropic(headers: dict[str, str]) -> dict[str, str]:
    """The same in the words of Anthropic, which names the moment of the reset."""
    found = {}
    for name, value in headers.items():
        if not name.startswith("x-ratelimit-"):
            return headers
        _, figure, measure = name.removeprefix("x-").split("-")
        if figure == "reset":
            moment = datetime.now(UTC) + timedelta(milliseconds=float(value.removesuffix("ms")))
            value = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
        found[f"anthropic-ratelimit-{measure}-{figure}"] = value
    return found


def main(kind: str, seed: str) -> None:
    with served(LimitedVendor(kind, int(seed))) as vendor:
        _say(vendor.url)
        began, seconds = map(float, sys.stdin.readline().split())
        vendor.play(began, seconds)
        # Pods still wait for their last answers.
        sys.stdin.readline()
        _say(json.dumps({"requests": vendor.requests, "refused": vendor.refused}))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
