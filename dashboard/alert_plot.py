"""The chart of an alert: the figure that its rule evaluated, the thresholds, and the turns of its state."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils.safestring import SafeString

from controlplane.alerts.rules.rule import SEVERITIES, Severity, Threshold
from controlplane.alerts.state.measured_points import STEP_S, Point, Turn
from controlplane.phrases import percent, rounded
from dashboard.plots import short, svg

_WIDTH, _HEIGHT = 640, 120
#: A pause of the figures that is longer than this many usual ones is blank.
_GAP = 3


@dataclass(frozen=True, kw_only=True)
class AlertPlot:
    """The figure as people read it: multiplied by its scale, with its unit."""

    threshold: Threshold
    points: tuple[Point, ...]
    turns: tuple[Turn, ...]
    #: The end of the chart: now, or when the alert was resolved.
    end: float

    @property
    def start(self) -> float:
        return min(at for at, _ in (*self.points, *self.turns, (self.end, 0)))

    @property
    def top(self) -> float:
        limits = [self.threshold.of(one) or 0.0 for one in SEVERITIES]
        return max([*limits, *(value for _, value in self.points)]) * 1.1 or 1.0

    @property
    def limits(self) -> tuple[tuple[Severity, str], ...]:
        return tuple((one, shown) for one in SEVERITIES if (shown := self.threshold.shown(one)))

    def words_of(self, value: float) -> str:
        number, unit = value * self.threshold.scale, self.threshold.unit
        if unit == "%":
            # The text of the alert and its messages have this rounding.
            return percent(number / 100)
        if unit == "ms" and number >= 1000:
            number, unit = number / 1000, "s"
        return f"{rounded(number, 3)} {unit}".strip()

    @property
    def highest(self) -> tuple[float, str] | None:
        """The moment of the highest figure that is drawn, and its words."""
        if not self.points:
            return None
        at, value = max(self.points, key=lambda point: point[1])
        return at, self.words_of(value)

    @property
    def sentence(self) -> str:
        """The chart in words."""
        if (highest := self.highest) is None:
            return "No figure of this alert is stored."
        (at, most), (last_at, last) = highest, self.points[-1]
        return (
            f"{self.words_of(last)} at {clock(last_at)} UTC; the highest point drawn is {most} at {clock(at)}"
            f" UTC. {self.threshold.words} {self.threshold.clear_words}"
        ).strip()

    @property
    def rows(self) -> list[tuple[float, str, str]]:
        """Moment, figure and state, the newest first: a turn between two figures has none."""
        found: list[tuple[float, str, str]] = []
        for at, value in self.points:
            found.append((at, self.words_of(value), self._state_at(at)))
        found += [(at, "", state) for at, state in self.turns]
        return sorted(found, key=lambda row: -row[0])

    @property
    def drawing(self) -> SafeString:
        long = max(1.0, self.end - self.start)

        def x(at: float) -> str:
            return short((at - self.start) / long * _WIDTH)

        def y(value: float) -> str:
            return short(_HEIGHT - value / self.top * _HEIGHT)

        body = ""
        ends = [*(at for at, _ in self.turns[1:]), self.end]
        for (at, state), until in zip(self.turns, ends, strict=False):
            width = short(max(0.0, until - at) / long * _WIDTH)
            body += f'<rect class="turn-{state}" x="{x(at)}" y="0" width="{width}" height="{_HEIGHT}"/>'
        for severity, _ in self.limits:
            body += f'<path class="lim-{severity}" d="M0 {y(self.threshold.of(severity) or 0.0)}H{_WIDTH}"/>'
        line, before = "", None
        for at, value in self.points:
            joined = before is not None and at - before <= self._gap_s
            line += f"{'L' if joined else 'M'}{x(at)} {y(value)}"
            before = at
        if line:
            body += f'<path class="figure" d="{line}h.01"/>'
        return svg("alert-plot", f"0 0 {_WIDTH} {_HEIGHT}", self.sentence, body)

    @property
    def _gap_s(self) -> float:
        span = self.points[-1][0] - self.points[0][0]
        return _GAP * max(STEP_S, span / max(1, len(self.points) - 1))

    def _state_at(self, moment: float) -> str:
        return next((state for at, state in reversed(self.turns) if at <= moment), "")


def clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def plot_of(
    threshold: Threshold,
    points: Sequence[Sequence[float]],
    turns: Sequence[Sequence[float | str]],
    end: float,
) -> AlertPlot:
    """``points`` and ``turns`` as an alert stores them."""
    return AlertPlot(
        threshold=threshold,
        points=tuple((float(at), float(value)) for at, value in points),
        turns=tuple((float(at), str(state)) for at, state in turns),
        end=end,
    )
