"""A breaker's state over the last hours, as segments of time and as one picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django.utils.html import escape
from django.utils.safestring import SafeString

from controlplane.status.breakers import NO_DATA, BreakerStatus
from controlplane.status.facts import Change, Facts, Override, Transition
from dashboard.live.breaker_looks import FACES
from dashboard.plots import short, svg

RANGES = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400}
RANGE_NAMES = {"15m": "15 min", "1h": "1 h", "6h": "6 h", "24h": "24 h"}
#: The state of a breaker that no live pod reports, and before the fleet was known.
UNKNOWN = NO_DATA
_WIDTH, _LEFT = 880, 86
#: The mean width of a letter, and the space around a label.
_LETTER, _APART = 6.2, 6


@dataclass(frozen=True, kw_only=True)
class Segment:
    start: float
    end: float
    kind: str
    word: str


@dataclass(frozen=True)
class _Labelled:
    """A mark on a lane, and the text that belongs to it."""

    left: float
    right: float
    text: str
    #: A label clipped to fewer letters is left out.
    shortest: int


def segments(
    transitions: Sequence[Transition],
    state_now: str,
    since: float | None,
    start: float,
    end: float,
    overrides: Sequence[Override] = (),
    *,
    known_from: float = 0.0,
    unknown: Sequence[tuple[float, float]] = (),
) -> list[Segment]:
    """The states between ``start`` and ``end``, from the transitions, newest first.

    The oldest known transition says what was before it, back to ``known_from``; earlier states are
    unknown, and so is what happened in the times of ``unknown``. A state that no transition explains
    begins when pods say it began.
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
    known_from = min(max(start, known_from), until)
    if until > known_from:
        found.append(_segment(known_from, until, state))
    if known_from > start:
        found.append(_segment(start, known_from, UNKNOWN))
    for left, right in unknown:
        found = _painted(found, _segment(left, right, UNKNOWN))
    for override in overrides:
        face = FACES[override.mode]
        time = Segment(start=override.made_at, end=override.expires_at, kind=face.kind, word=face.word)
        found = _painted(found, time)
    return sorted(found, key=lambda segment: segment.start)


def segments_of(status: BreakerStatus, facts: Facts, start: float, end: float) -> list[Segment]:
    """The states of one breaker. What no pod reports is unknown since the last heartbeat."""
    own = [transition for transition in facts.transitions if transition.dependency == status.name]
    state, since = status.state, status.state_since
    if not any(effective != NO_DATA for effective, _ in status.views):
        state, since = UNKNOWN, max((server.last_seen for server in facts.servers), default=0.0)
    overrides = [override for override in facts.overrides(status.name) if override.expires_at > start]
    known_from = max(facts.known_from, status.dependency.added_at)
    # A state that no pod sees now is unknown until the end of the picture, which is a little later.
    unknown = [(left, end if right >= facts.now else right) for left, right in facts.without_redis]
    return segments(own, state, since, start, end, overrides, known_from=known_from, unknown=unknown)


def _painted(found: list[Segment], over: Segment) -> list[Segment]:
    """The segments with another one over them."""
    left, right = over.start, over.end
    rest: list[Segment] = []
    for segment in found:
        if segment.start < left:
            rest.append(replace(segment, end=min(segment.end, left)))
        if segment.end > right:
            rest.append(replace(segment, start=max(segment.start, right)))
    start, end = min(s.start for s in found), max(s.end for s in found)
    if left < end and right > start:
        rest.append(replace(over, start=max(left, start), end=min(right, end)))
    return rest


def _segment(start: float, end: float, state: str) -> Segment:
    if state not in FACES or state == UNKNOWN:
        return Segment(start=start, end=end, kind="unknown", word="Unknown")
    face = FACES[state]
    return Segment(start=start, end=end, kind=face.kind, word=face.word)


def shares(found: Sequence[Segment], start: float, end: float) -> list[tuple[str, float]]:
    """Return kinds with their share of the time, in percent, as ``plots.band`` takes them."""
    whole = max(1.0, end - start)
    return [(segment.kind, (segment.end - segment.start) / whole * 100) for segment in found]


#: See ``controlplane.status.outages``.
_UNKNOWN_NOTE = "No pod reported the state. Approximate if the number of pods changed since then."


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
        note = f"<title>{_UNKNOWN_NOTE}</title>" if segment.kind == "unknown" else ""
        body += f'width="{short(max(2, right - left - 1))}" height="26" rx="2">{note}</rect>'
        if right - left > 7 * len(segment.word) + 8:
            on = ' class="on"' if segment.kind in ("open", "forced", "pinned") else ""
            body += (
                f'<text{on} x="{short((left + right) / 2)}" y="27" text-anchor="middle">{segment.word}</text>'
            )
    bars = []
    for override in sorted(overrides, key=lambda override: -override.made_at):
        left, right = x(override.made_at), x(min(override.expires_at, end))
        body += f'<rect class="seg-forced" x="{short(left)}" y="46" '
        body += f'width="{short(max(3, right - left - 1))}" height="22" rx="2"/>'
        bars.append(_Labelled(left, right, f"{override.actor}, {override.reason}", shortest=6))
    marks = []
    for change in sorted(changes, key=lambda change: -change.at):
        at, text = x(change.at), f"revision {change.revision}"
        title = f"<title>{escape(f'{text}: {change.reason}')}</title>"
        body += f'<path class="mark" d="M{short(at)} 82l5 5-5 5-5-5z">{title}</path>'
        marks.append(_Labelled(at - 5, at + 5, text, shortest=len(text)))
    body += _labels(bars, 61) + _labels(marks, 91)
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
        if x(at) > _WIDTH - 16:  # Centred, the last one would leave the picture.
            body += f'<text x="{_WIDTH}" y="119" text-anchor="end">{_clock(at)}</text>'
        else:
            body += f'<text x="{place}" y="119" text-anchor="middle">{_clock(at)}</text>'
        at += step
    for y, name in ((27, "State"), (61, "Override"), (92, "Changes")):
        body += f'<text class="lane-lab" x="0" y="{y}">{name}</text>'
    return body


def _labels(drawn: Sequence[_Labelled], y: int) -> str:
    """The labels of one lane, in the order of their importance.

    Each is right or left of its mark, where there is more room until the next mark or label. One
    without room is left out.
    """
    taken = [(mark.left, mark.right) for mark in drawn]
    body = ""
    for mark in drawn:
        before = max((right for left, right in taken if left < mark.left), default=_LEFT)
        after = min((left for left, right in taken if right > mark.right), default=_WIDTH)
        left_room, right_room = mark.left - _APART - before, after - _APART - mark.right
        text = _clip(mark.text, int((max(left_room, right_room) - _APART) / _LETTER))
        if len(text) < min(mark.shortest, len(mark.text)):
            continue
        width = len(text) * _LETTER
        if right_room >= left_room:
            start = mark.right + _APART
            body += f'<text x="{short(start)}" y="{y}">{escape(text)}</text>'
            taken.append((start, start + width))
        else:
            end = mark.left - _APART
            body += f'<text x="{short(end)}" y="{y}" text-anchor="end">{escape(text)}</text>'
            taken.append((end - width, end))
    return body


def _clip(text: str, room: int) -> str:
    """At most ``room`` letters; empty without room."""
    room = max(0, min(room, 60))
    return text if len(text) <= room else text[: room - 1] + "\u2026" if room else ""


def _css(kind: str) -> str:
    return {"pinned": "forced"}.get(kind, kind)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"
