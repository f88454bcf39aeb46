"""Breakers as the pages display them: each with a hue, a shape, a word and its recent past."""

from collections import Counter
from dataclasses import dataclass

from django.utils.safestring import SafeString

from controlplane.status.breakers import BreakerStatus
from controlplane.status.facts import Facts
from dashboard.live.breaker_looks import FACES, BreakerLook
from dashboard.live.history import History
from dashboard.live.timeline import segments_of, shares
from dashboard.plots import band

#: How far back the strip of a row reaches.
BAND_S = 6 * 3600


@dataclass(frozen=True, kw_only=True)
class PodView:
    """The breaker as one pod reports it."""

    server: str
    face: BreakerLook
    local: bool


@dataclass(frozen=True, kw_only=True)
class Breaker(BreakerStatus):
    face: BreakerLook
    #: The last seconds of calls: see ``plots.strip``.
    marks: str
    #: The latency of calls in the last minute; ``None`` if unknown.
    p99_ms: float | None
    #: Six hours of states, as one strip.
    band: SafeString

    @property
    def seen(self) -> tuple[PodView, ...]:
        return tuple(
            PodView(server=view.server, face=FACES[view.effective], local=view.local) for view in self.seen_by
        )

    @property
    def css(self) -> str:
        return "st-warn" if self.near else self.face.css

    @property
    def label(self) -> str:
        """The ring in words, for people who do not see it."""
        if self.override is not None:
            return f"{self.face.word} by {self.override.actor}"
        if self.why:
            return f"{self.face.word}. {self.why[:1].upper()}{self.why[1:]}"
        percent = self.dependency.failure_percent
        return f"{self.face.word}. {self.failures} of {self.calls} calls failed, threshold {percent} percent"

    @property
    def shown_ratio(self) -> float:
        """The part of the ring and the bar that is filled: counted now, or when it tripped."""
        trip = self.trip
        if trip is None:
            return 1.0 if self.alone and self.why else self.ratio
        if trip.figures is None or trip.cause == "consecutive":
            return 1.0
        count = trip.figures.slow if trip.cause == "slow" else trip.figures.failures
        return count / max(1, trip.figures.calls)

    @property
    def drawn_ratio(self) -> float:
        """``shown_ratio``, but nothing of a breaker that a person forced open: no count opened it."""
        return 0.0 if self.override is not None and self.face.kind == "forced" else self.shown_ratio

    @property
    def shown_threshold(self) -> float:
        """The threshold that ``shown_ratio`` is compared with: another one after a trip by slow calls."""
        trip = self.trip
        if trip is None:
            return 1.0 if self.alone and self.why else self.threshold
        if trip.figures is None or trip.cause == "consecutive":
            return 1.0
        return trip.figures.threshold / 100

    @property
    def counted(self) -> str:
        """The count in a cell of a table: "5 in a row", "18/24"."""
        if self.alone and self.why:
            return ""  # The windows of pods are not one window.
        trip = self.trip
        if trip is None:
            return f"{self.failures}/{self.calls}"
        if trip.figures is None:
            return ""
        if trip.cause == "consecutive":
            return f"{trip.figures.consecutive} in a row"
        if trip.cause == "slow":
            return f"{trip.figures.slow}/{trip.figures.calls} slow"
        return f"{trip.figures.failures}/{trip.figures.calls}"

    @property
    def disagreeing(self) -> list[tuple[str, int]]:
        """Other states that pods report, with how many report them."""
        other: Counter[str] = Counter()
        for (effective, _), count in self.views.items():
            if FACES[effective] != self.face:
                other[FACES[effective].word.lower()] += count
        return other.most_common()


def breaker_of(status: BreakerStatus, facts: Facts, history: History) -> Breaker:
    return Breaker(
        **vars(status),
        face=FACES[status.effective],
        marks=history.marks(status.name),
        p99_ms=facts.call_p99_ms.get(status.name),
        band=_band(status, facts),
    )


def _band(status: BreakerStatus, facts: Facts) -> SafeString:
    # To the minute, so that the strip's bytes do not change every second.
    end = facts.now // 60 * 60 + 60
    start = end - BAND_S
    return band(shares(segments_of(status, facts, start, end), start, end))
