"""One figure from 0 to 1 that says how much a pod is overloaded, and why."""

from typing import NamedTuple

from msgspec import Struct

from fuseboard.contract.words import LoadLevel

#: It rises at once, and falls by this much per second: a short pause is no recovery.
FALL_PER_S = 0.1


class Scale(NamedTuple):
    """Below ``normal`` a measurement is no pressure; at ``full`` it is all of it."""

    normal: float
    full: float

    def score(self, measured: float) -> float:
        return min(1.0, max(0.0, (measured - self.normal) / (self.full - self.normal)))


#: Times are in seconds, everything else is a part of 1.
SCALES = {
    "loop_lag": Scale(0.020, 0.200),
    "queue": Scale(0.5, 1.0),
    "slots": Scale(0.8, 1.0),
    "latency": Scale(0.7, 1.0),
    "errors": Scale(0.2, 0.5),
    "cpu": Scale(0.7, 0.95),
    "throttling": Scale(0.1, 0.5),
    "memory": Scale(0.80, 0.95),
}


class Signal(NamedTuple):
    name: str
    #: The value in seconds or as a part of 1; ``None`` for unknown, which is no pressure.
    measured: float | None
    score: float
    #: The signal in words: ``94 calls wait (limit 100)``.
    text: str


class Pressure(Struct, frozen=True):
    """The largest score of all signals: a mean would hide the one resource that is used up."""

    value: float = 0.0
    level: LoadLevel = LoadLevel.NORMAL
    #: The text of the signal that the value comes from; empty without pressure.
    cause: str = ""
    signals: tuple[Signal, ...] = ()
    #: Seconds since the level last changed.
    since_s: float = 0.0

    def explain(self) -> str:
        """One sentence: ``0.82 because 94 calls wait (limit 100)``."""
        return f"{self.value:.2f} because {self.cause}" if self.cause else f"{self.value:.2f}"

    def as_dict(self) -> dict[str, object]:
        return {
            "value": round(self.value, 3),
            "level": str(self.level),
            "cause": self.cause,
            "since_s": round(self.since_s, 1),
            "signals": {
                one.name: {"measured": one.measured, "score": round(one.score, 3), "text": one.text}
                for one in self.signals
            },
        }


def signal(name: str, measured: float | None, text: str) -> Signal:
    """``text`` describes the measurement, and is empty when there is none."""
    return Signal(name, measured, 0.0 if measured is None else SCALES[name].score(measured), text)


class PressureGauge:
    """Remembers the last figure, so that it falls slowly."""

    def __init__(self) -> None:
        self.value = 0.0
        self.cause = ""
        self._at: float | None = None

    def measure(self, signals: tuple[Signal, ...], now: float) -> float:
        """The pressure of these signals at ``now``."""
        worst = max(signals, key=lambda one: one.score, default=None)
        elapsed = max(0.0, now - self._at) if self._at is not None else 0.0
        self._at = now
        fallen = self.value - FALL_PER_S * elapsed
        if worst is not None and worst.score > 0 and worst.score >= fallen:
            self.value, self.cause = worst.score, worst.text
        else:
            self.value = max(0.0, fallen)
            if not self.value:
                self.cause = ""
            elif self.cause and not self.cause.startswith(_BEFORE):
                self.cause = _BEFORE + self.cause
        return self.value


#: The cause has passed, and the figure still falls.
_BEFORE = "a moment ago, "
