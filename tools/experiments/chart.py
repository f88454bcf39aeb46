"""Line charts as SVG: readable on light and dark pages, and without a script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, log10

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 44
#: People with any colour vision can distinguish them. Their contrast to white is at least 3.
COLOURS = ("#1f6feb", "#c2410c", "#0f766e", "#7e22ce", "#6b7280", "#a16207")


@dataclass
class Chart:
    """``series``: name -> points. ``limits``: name -> value of a dashed line."""

    title: str
    x: str
    y: str
    series: Mapping[str, Points]
    limits: Mapping[str, float] = field(default_factory=dict)
    #: The largest value drawn; larger ones touch the top.
    most: float | None = None

    def svg(self) -> str:
        points = [point for line in self.series.values() for point in line]
        most_x = max((x for x, _ in points), default=1.0) or 1.0
        most_y = self.most or max([y for _, y in points] + list(self.limits.values()), default=1.0) or 1.0
        cut = f" (cut at {self.most:g})" if self.most else ""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
            f' font-family="system-ui, sans-serif" font-size="12"><title>{escape(self.title)}</title>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text x="{LEFT}" y="18" font-weight="600" fill="#111827">{escape(self.title)}</text>',
        ]
        for value in _ticks(most_y):
            y = _y(value, most_y)
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>')
            parts.append(
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#374151">{value:g}</text>'
            )
        for value in _ticks(most_x):
            x = _x(value, most_x)
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle"'
                f' fill="#374151">{value:g}</text>'
            )
        parts.append(
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle"'
            f' fill="#374151">{escape(self.x)}</text>'
            f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle"'
            f' fill="#374151">{escape(self.y + cut)}</text>'
        )
        for name, value in self.limits.items():
            y = _y(min(value, most_y), most_y)
            parts.append(
                f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#111827" stroke-dasharray="5 4"/>'
                f'<text x="{WIDTH - RIGHT}" y="{y - 4:.1f}" text-anchor="end"'
                f' fill="#111827">{escape(name)}</text>'
            )
        for (name, line), colour, at in zip(self.series.items(), COLOURS, range(len(COLOURS)), strict=False):
            path = " ".join(f"{_x(x, most_x):.1f},{_y(min(y, most_y), most_y):.1f}" for x, y in line)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            left = LEFT + at * (WIDTH - LEFT - RIGHT) / max(1, len(self.series))
            parts.append(
                f'<rect x="{left:.0f}" y="26" width="12" height="4" fill="{colour}"/>'
                f'<text x="{left + 17:.0f}" y="32" fill="#111827">{escape(name)}</text>'
            )
        return "".join(parts) + "</svg>\n"


def _x(value: float, most: float) -> float:
    return LEFT + value / most * (WIDTH - LEFT - RIGHT)


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - value / most * (HEIGHT - BOTTOM - TOP)


def _ticks(most: float) -> list[float]:
    """About five round values from 0 to ``most``."""
    step = 10 ** floor(log10(most / 4))
    step *= next(times for times in (1, 2, 5, 10) if most / (step * times) <= 6)
    return [at * step for at in range(int(most / step + 1e-9) + 1)]
