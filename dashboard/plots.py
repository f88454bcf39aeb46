"""Server-rendered SVG: pure functions from numbers to markup.

There is no inline style and no script, so plots pass the content security policy, morph like any
other markup, print, and carry their own text alternative. One decimal is enough for a pixel and
keeps fragments small on the wire.
"""

import math
from collections.abc import Iterable, Sequence

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

#: A mark of a strip: o ok, b failed, s slow, c blocked.
Marks = str


def short(x: float) -> str:
    """Shortest useful decimal."""
    text = f"{x:.1f}"
    return text.removesuffix(".0")


def svg(css: str, box: str, label: str, body: str, *, stretch: bool = True) -> SafeString:
    aspect = ' preserveAspectRatio="none"' if stretch else ""
    role = format_html('role="img" aria-label="{}"', label) if label else 'aria-hidden="true"'
    # Safe: css, box and body are built from numbers and constants below; the label is escaped.
    return mark_safe(f'<svg class="{css}" viewBox="{box}"{aspect} {role}>{body}</svg>')  # noqa: S308


def spark(values: Sequence[float | None], *, limit: float | None = None, label: str = "") -> SafeString:
    """Lines with their area, the last value as a dot, and the limit as a dashed line.

    ``None`` is blank, and so is everything where nothing was measured.
    """
    width, height = 120, 28
    points = list(values) if len(values) > 1 else [*(values or [None])] * 2
    top = max((value for value in points if value is not None), default=0.0)
    top = max(top, limit or 0.0) * 1.1 or 1.0

    def y(value: float) -> float:
        return height - 2 - value / top * (height - 4)

    step = width / (len(points) - 1)
    areas, lines = "", ""
    for run in _runs(points):
        line = "L".join(f"{short(place * step)} {short(y(value))}" for place, value in run)
        first, last = short(run[0][0] * step), short(run[-1][0] * step)
        areas += f"M{first} {height}L{line}L{last} {height}Z"
        lines += f"M{line}h0"
    body = f'<path class="area" d="{areas}"/>' if areas else ""
    if limit is not None:
        body += f'<path class="lim" d="M0 {short(y(limit))}H{width}"/>'
    body += f'<path d="{lines}"/>' if lines else ""
    if (last_value := points[-1]) is not None:
        body += f'<path class="end" d="M{width} {short(y(last_value))}h.01"/>'
    return svg("spark", f"0 0 {width} {height}", label, body)


def _runs(points: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The known points and their places, cut where one is missing."""
    runs: list[list[tuple[int, float]]] = []
    for place, value in enumerate(points):
        if value is None:
            continue
        if not runs or runs[-1][-1][0] != place - 1:
            runs.append([])
        runs[-1].append((place, value))
    return runs


def strip(marks: Marks, *, width: int = 280, height: int = 16, label: str = "") -> SafeString:
    """One mark per moment, oldest first. Height and fill differ, not only the hue:
    short = ok, tall = failed, tall and hollow = slow, dot = blocked.
    """
    pitch = width / max(1, len(marks))
    bar = max(1.5, pitch * 0.62)
    paths: dict[str, list[str]] = {}
    for i, mark in enumerate(marks):
        x = i * pitch
        if mark == "b":
            paths.setdefault("bad", []).append(f"M{short(x)} 0h{short(bar)}v{height}h-{short(bar)}z")
        elif mark == "s":
            paths.setdefault("slow", []).append(
                f"M{short(x + 0.5)} .5h{short(bar - 1)}v{height - 1}h-{short(bar - 1)}z"
            )
        elif mark in "oc":
            part = 0.38 if mark == "o" else 0.18
            paths.setdefault("ok" if mark == "o" else "cut", []).append(
                f"M{short(x)} {short(height * (1 - part))}h{short(bar)}v{short(height * part)}h-{short(bar)}z"
            )
    body = "".join(f'<path class="tick-{kind}" d="{"".join(d)}"/>' for kind, d in paths.items())
    return svg("strip", f"0 0 {width} {height}", label, body)


def ring(kind: str, ratio: float = 0.0, threshold: float = 0.5, *, label: str = "") -> SafeString:
    """The glyph of a breaker: arc = failures in the window, tick = threshold, lever = state."""
    radius, around = 28, 2 * math.pi * 28
    angle = 2 * math.pi * min(threshold, 0.999) - math.pi / 2
    cos, sin = math.cos(angle), math.sin(angle)
    tick = " ".join(short(v) for v in (32 + 23.5 * cos, 32 + 23.5 * sin))
    tick_end = " ".join(short(v) for v in (32 + 32 * cos, 32 + 32 * sin))
    arc = short(around * min(1.0, ratio))
    disc = '<circle class="ring-disc" cx="32" cy="32" r="21.5"/>' if kind == "open" else ""
    body = (
        f'<circle class="ring-track" cx="32" cy="32" r="{radius}" stroke-width="5"/>'
        f'<circle class="ring-arc" cx="32" cy="32" r="{radius}" stroke-width="5" '
        f'stroke-dasharray="{arc} {short(around)}" transform="rotate(-90 32 32)"/>'
        f'{disc}<path class="ring-tick" d="M{tick}L{tick_end}" stroke-width="2.5"/>'
        f'<use href="#g-{kind}" x="16" y="15" width="32" height="32"/>'
    )
    return svg(f"ring ring-{kind}", "0 0 64 64", label, body, stretch=False)


def bar(
    parts: Iterable[tuple[str, float]], *, height: int = 8, marks: Iterable[float] = (), css: str = "meter"
) -> SafeString:
    """Parts are (class, width 0 to 100) from left to right; marks are positions 0 to 100."""
    x, body = 0.0, f'<rect class="bar-bg" width="100" height="{height}" rx="1"/>'
    for kind, width in parts:
        shown = max(0.0, min(width, 100 - x))
        body += f'<rect class="{kind}" x="{short(x)}" width="{short(shown)}" height="{height}"/>'
        x += shown
    for mark in marks:
        body += f'<path class="mk" d="M{short(min(99.5, mark))} -1v{height + 2}"/>'
    return svg(css, f"0 0 100 {height}", "", body)


def glyph(kind: str, css: str = "") -> SafeString:
    return format_html('<svg class="glyph {}" aria-hidden="true"><use href="#g-{}"/></svg>', css, kind)


def band(segments: Iterable[tuple[str, float]]) -> SafeString:
    """Hours as one strip of (kind, width 0 to 100). Open is tall, closed is a thin line."""
    shape = {"closed": (3, 9), "half": (8, 4), "open": (12, 0), "forced": (12, 0), "pinned": (12, 0)}
    x, body = 0.0, ""
    for kind, width in segments:
        if kind not in shape:  # unknown: blank
            x += width
            continue
        height, y = shape[kind]
        css = "forced" if kind == "pinned" else kind
        body += f'<rect class="seg-{css}" x="{short(x)}" y="{y}" width="{short(width)}" height="{height}"/>'
        x += width
    return svg("band", "0 0 100 12", "", body)


#: A larger fleet has one bar for the shared pods of each zone, and marks for so many of the others.
MAX_MARKED = 200
MAX_OTHERS = 60
Zones = Sequence[tuple[str, Sequence[tuple[str, str, str]]]]


def fleet(zones: Zones) -> SafeString:
    """One mark per pod (name, kind, word), grouped by zone: the shape changes, not only the hue."""
    if sum(len(members) for _, members in zones) > MAX_MARKED:
        return _large_fleet(zones)
    across, pitch = 24, 15.5
    body, label, x, y = "", [], 0.0, 0.0
    for zone, members in zones:
        if x and x + pitch * len(members) > pitch * across:
            x, y = 0.0, y + 32
        body += f'<text x="{short(x)}" y="{short(y + 8)}">{escape(zone)}</text>'
        start = x
        for i, (name, kind, word) in enumerate(members):
            if i and i % across == 0:
                x, y = start, y + 16
            body += _server_mark(kind, x, y, f"<title>{escape(name)}, {escape(word.lower())}</title>")
            x += pitch
        label.append(f"{zone}: " + ", ".join(_tally(members)))
        x = max(x, start + 6.0 * len(zone)) + 10
    text = "Pods by zone. " + ". ".join(label)
    return svg("fleet", f"-1 0 {pitch * across:.0f} {short(y + 28)}", text, body, stretch=False)


def _large_fleet(zones: Zones) -> SafeString:
    """1,000 marks cannot be told apart, and are more than a tick may send."""
    across, pitch = 24, 15.5
    most = max(len(members) for _, members in zones)
    body, label, y, room = "", [], 0.0, MAX_OTHERS
    for zone, members in zones:
        others = [one for one in members if one[1] != "shared"]
        shared, marked = len(members) - len(others), others[:room]
        room -= len(marked)
        text = f"{zone}: {shared} of {len(members)} shared"
        if len(others) > len(marked):
            text += f", {len(others) - len(marked)} not drawn"
        width = short(shared / most * across * pitch)
        body += f'<text x="0" y="{short(y + 8)}">{escape(text)}</text>'
        body += f'<rect class="s" x="0" y="{short(y + 13)}" width="{width}" height="6" rx="1.5"/>'
        y += 10
        for i, (name, kind, word) in enumerate(marked):
            if i and i % across == 0:
                y += 16
            title = f"<title>{escape(name)}, {escape(word.lower())}</title>"
            body += _server_mark(kind, i % across * pitch, y, title)
        label.append(f"{zone}: " + ", ".join(_tally(members)))
        y += 34 if marked else 16
    text = "Pods by zone. " + ". ".join(label)
    return svg("fleet", f"-1 0 {pitch * across:.0f} {short(y)}", text, body, stretch=False)


_LEGEND = {
    "shared": '<rect class="s" width="12" height="12" rx="2"/>',
    "local": '<path class="s-local" d="M6 0L12 6L6 12L0 6z"/>',
    "drill": '<path class="s-local" d="M6 0L12 6L6 12L0 6z"/>',
    "ramping": '<path class="s-ramping" d="M6 1L11 6L6 11L1 6z"/>',
    "lag": '<rect class="s-lag" x="1" y="1" width="10" height="10" rx="1.5"/>',
    "silent": '<rect class="s-gone" x="1" y="1" width="10" height="10" rx="1.5"/>',
}


def fleet_mark(kind: str) -> SafeString:
    """The mark of a kind of server, for the legend."""
    return svg("fleet", "0 0 12 12", "", _LEGEND[kind], stretch=False)


def _server_mark(kind: str, x: float, y: float, title: str) -> str:
    if kind in ("local", "drill", "ramping"):
        css = "s-ramping" if kind == "ramping" else "s-local"
        left, mid, right = short(x - 1), short(x + 6), short(x + 13)
        top, middle, bottom = short(y + 12), short(y + 19), short(y + 26)
        diamond = f"M{mid} {top}L{right} {middle}L{mid} {bottom}L{left} {middle}z"
        return f'<path class="{css}" d="{diamond}">{title}</path>'
    if kind in ("lag", "rejected", "silent"):
        css = "s-gone" if kind == "silent" else "s-lag"
        place = f'x="{short(x + 1)}" y="{short(y + 14)}" width="10" height="10" rx="1.5"'
        return f'<rect class="{css}" {place}>{title}</rect>'
    return (
        f'<rect class="s" x="{short(x)}" y="{short(y + 13)}" width="12" height="12" rx="1.5">{title}</rect>'
    )


def _tally(members: Sequence[tuple[str, str, str]]) -> list[str]:
    words = [word.lower() for _, _, word in members]
    return [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
