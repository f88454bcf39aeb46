"""A breaker's state over the last hours, as segments of time and as one picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.utils.html import escape
from django.utils.safestring import SafeString

from controlplane.status.facts import Change, Override, Transition
from dashboard.live.breaker_looks import FACES
from dashboard.plots import short, svg

RANGES = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400}
_NAMES = {"15m": "15 min", "1h": "1 h", "6h": "6 h", "24h": "24 h"}
_WIDTH, _LEFT = 880, 86


@dataclass(frozen=True, kw_only=True)
class Segment:
    start: float
    end: float
    kind: str
    word: str


def range_name(key: str) -> str:
    return _NAMES[key]


def segments(
    transitions: Sequence[Transition],
    state_now: str,
    since: float | None,
    start: float,
    end: float,
    overrides: Sequence[Override] = (),
) -> list[Segment]:
    """The states between ``start`` and ``end``, from the transitions, newest first.

    The oldest known transition says what was before it. A state that no transition explains begins
    when pods say it began.
    """
    found: list[Segment] = []
    until, state = end, state_now
    if not transitions or transitions[0].after != state_now:
        known = transitions[0].at if transitions else start
        begin = max(start, known, since if since is not None else end)
        if begin < end:
            found.append(_segment(begin, end, state_now))
            until, state = begin, transitions[0].after if transitions else "closed"
    for transition in transitions:
        if transition.at >= until:
            state = transition.before
            continue
        begin = max(start, transition.at)
        found.append(_segment(begin, until, transition.after))
        until, state = begin, transition.before
        if until <= start:
            break
    if until > start:
        found.append(_segment(start, until, state))
    for override in overrides:
        found = _painted(found, override)
    return sorted(found, key=lambda segment: segment.start)


def _painted(found: list[Segment], override: Override) -> list[Segment]:
    """The segments with the time of an override in its own colour."""
    face = FACES[override.mode]
    left, right = override.made_at, override.expires_at
    rest: list[Segment] = []
    for segment in found:
        if segment.start < left:
            rest.append(replace(segment, end=min(segment.end, left)))
        if segment.end > right:
            rest.append(replace(segment, start=max(segment.start, right)))
    start, end = min(s.start for s in found), max(s.end for s in found)
    if left < end and right > start:
        rest.append(Segment(start=max(left, start), end=min(right, end), kind=face.kind, word=face.word))
    return rest


def _segment(start: float, end: float, state: str) -> Segment:
    face = FACES[state if state in FACES else "closed"]
    return Segment(start=start, end=end, kind=face.kind, word=face.word)


def not_closed_s(found: Sequence[Segment]) -> float:
    return sum(segment.end - segment.start for segment in found if segment.kind != "closed")


def shares(found: Sequence[Segment], start: float, end: float) -> list[tuple[str, float]]:
    """For ``plots.band``: kinds with their share of the time, in percent."""
    whole = max(1.0, end - start)
    return [(segment.kind, (segment.end - segment.start) / whole * 100) for segment in found]


def lanes(
    found: Sequence[Segment],
    overrides: Sequence[Override],
    changes: Sequence[Change],
    start: float,
    end: float,
) -> SafeString:
    """State, overrides and configuration on one axis, so that cause and effect line up."""
    plot = _WIDTH - _LEFT - 10

    def x(at: float) -> float:
        return _LEFT + (min(max(at, start), end) - start) / (end - start) * plot

    body = _axis(x, start, end)
    for segment in found:
        left, right = x(segment.start), x(segment.end)
        body += f'<rect class="seg-{_css(segment.kind)}" x="{short(left)}" y="10" '
        body += f'width="{short(max(2, right - left - 1))}" height="26" rx="2"/>'
        if right - left > 7 * len(segment.word) + 8:
            on = ' class="on"' if segment.kind in ("open", "forced", "pinned") else ""
            body += (
                f'<text{on} x="{short((left + right) / 2)}" y="27" text-anchor="middle">{segment.word}</text>'
            )
    for override in overrides:
        left, right = x(override.made_at), x(min(override.expires_at, end))
        body += f'<rect class="seg-forced" x="{short(left)}" y="46" '
        body += f'width="{short(max(3, right - left - 1))}" height="22" rx="2"/>'
        body += _beside(left, right, f"{override.actor}, {override.reason}", 61)
    for change in changes:
        at = x(change.at)
        title = f"<title>{escape(change.reason)}</title>"
        body += f'<path class="mark" d="M{short(at)} 82l5 5-5 5-5-5z">{title}</path>'
        if at < _WIDTH - 110:
            body += (
                f'<text x="{short(at + 9)}" y="91">{escape(_clip(f"revision {change.revision}", 18))}</text>'
            )
    body += f'<path class="nowline" d="M{short(x(end))} 4V104"/>'
    label = "State over time. " + ", ".join(
        f"{segment.word.lower()} from {_clock(segment.start)} to {_clock(segment.end)}"
        for segment in found[-8:]
    )
    return svg("lanes", f"0 0 {_WIDTH} 124", label, body, stretch=False)


def _axis(x: Callable[[float], float], start: float, end: float) -> str:
    step = next(s for s in (60, 180, 600, 3600, 10_800, 43_200) if (end - start) / s <= 8)
    body, at = "", start - start % step + step
    while at <= end:
        place = short(x(at))
        body += f'<path class="ax" d="M{place} 8V104"/>'
        body += f'<text x="{place}" y="119" text-anchor="middle">{_clock(at)}</text>'
        at += step
    for y, name in ((27, "State"), (61, "Override"), (92, "Changes")):
        body += f'<text class="lane-lab" x="0" y="{y}">{name}</text>'
    return body


def _beside(left: float, right: float, text: str, y: int) -> str:
    """A label where there is room: left of the bar, or right of it."""
    room_left, room_right = int((left - _LEFT - 8) / 6.2), int((_WIDTH - right - 16) / 6.2)
    if max(room_left, room_right) < 6:
        return ""
    if room_left >= room_right:
        return (
            f'<text x="{short(left - 7)}" y="{y}" text-anchor="end">{escape(_clip(text, room_left))}</text>'
        )
    return f'<text x="{short(right + 7)}" y="{y}">{escape(_clip(text, room_right))}</text>'


def _clip(text: str, room: int) -> str:
    room = min(room, 60)
    return text if len(text) <= room else text[: room - 1] + "\u2026"


def _css(kind: str) -> str:
    return {"pinned": "forced", "stale": "closed"}.get(kind, kind)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"
