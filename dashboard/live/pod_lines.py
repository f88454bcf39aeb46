"""Events of pods in lines: one for all pods to which the same happened at about the same time.

A breaker of pods that opens again and again is one line too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane.fleet.models import Event
from controlplane.status.facts import PodEvent
from dashboard.words.labels import state_verb
from dashboard.words.store_errors import store_error_words

#: Pods notice a lost Redis one after the other, and report it with their next heartbeat.
TOGETHER_S = 30.0
#: Changes of pods' own breakers of one dependency, this far apart at most, are one episode.
_FLAPPING_S = 300.0
#: Letters of a cause: an exception may have hundreds.
_CAUSE = 80

#: The cause of the mode of a pod that starts. It has lost nothing.
_NOT_CONNECTED = "not connected yet"
_MODE = re.compile(r"(?:(\w+) -> )?(\w+)(?:: (.*))?", re.DOTALL)
_BREAKER = re.compile(r"(\S+): (\w+) -> (\w+)")
#: Mode -> what a pod did, and what several did.
_MODES = {
    "local": ("lost Redis and uses local limits", "lost Redis and use local limits"),
    "ramping": ("reaches Redis again, its limits rise", "reach Redis again, their limits rise"),
    "shared": ("uses shared limits again", "use shared limits again"),
    "drill": ("began a drill", "began a drill"),
}


@dataclass(frozen=True, kw_only=True)
class PodLine:
    """One line of "Recent changes"."""

    at: float
    pods: str
    did: str


@dataclass(frozen=True, kw_only=True)
class _Group:
    events: tuple[PodEvent, ...]

    @property
    def at(self) -> float:
        """When it began: the first of the pods."""
        return self.events[-1].at

    @property
    def ended(self) -> float:
        return max(event.last or event.at for event in self.events)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for event in self.events for name in _names(event))

    @property
    def pods(self) -> int:
        return sum(event.pods for event in self.events)

    @property
    def common(self) -> PodEvent:
        """The event of most of them: they share a change, but have different causes."""
        return max(self.events, key=lambda event: event.pods)

    @property
    def who(self) -> str:
        if self.pods == 1:
            return self.events[0].server
        return f"{self.pods}{' or more' if any(event.more for event in self.events) else ''} pods"

    def holds(self, event: PodEvent) -> bool:
        """Whether an earlier event belongs to it. What a pod does again is another one."""
        return self.ended - event.at <= TOGETHER_S and self.names.isdisjoint(_names(event))


def pod_lines(events: Iterable[PodEvent]) -> list[PodLine]:
    """Newest first, as the events are."""
    known = _without_starts(list(events))
    modes = [line for group in _groups(known) if group.common.kind != "breaker" and (line := _line(group))]
    return sorted([*modes, *own_lines(known)], key=lambda line: -line.at)


def own_lines(events: Iterable[PodEvent], dependency: str = "") -> list[PodLine]:
    """Lines about pods' own breakers, of one dependency or of all; newest first."""
    episodes: list[list[_Group]] = []
    newest: dict[str, list[_Group]] = {}
    for group in _groups(event for event in events if event.kind == "breaker"):
        match = _BREAKER.fullmatch(group.common.detail)
        if match is None or dependency not in ("", match[1]):
            continue
        episode = newest.get(match[1])
        if episode is None or episode[-1].at - group.ended > _FLAPPING_S:
            episode = newest[match[1]] = []
            episodes.append(episode)
        episode.append(group)
    lines = [line for episode in episodes for line in _episode_lines(episode)]
    return sorted(lines, key=lambda line: -line.at)


def _episode_lines(episode: list[_Group]) -> list[PodLine]:
    opened = [group for group in episode if group.common.detail.endswith("-> open")]
    if len(opened) < 2:
        return [line for group in episode if (line := _line(group))]
    names = frozenset[str]().union(*(group.names for group in episode))
    pods = max(len(names), *(group.pods for group in episode))
    who = episode[0].events[0].server if pods == 1 else f"{pods} pods"
    dependency = episode[0].common.detail.partition(": ")[0]
    whose = "its own breaker" if pods == 1 else "their own breakers"
    times = sum(group.pods for group in opened)
    did = f"opened {whose} of {dependency} {times} times, {_clock(episode[-1].at)} to "
    return [PodLine(at=episode[0].at, pods=who, did=f"{did}{_clock(episode[0].ended)}")]


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"


def _without_starts(events: list[PodEvent]) -> list[PodEvent]:
    """A pod that starts decides alone until it is connected. It has lost nothing, and regains nothing."""
    starts = [event for event in events if event.detail.endswith(f": {_NOT_CONNECTED}")]
    return [
        event
        for event in events
        if event not in starts
        and not (
            event.detail.startswith("local -> shared")
            and any(
                0 <= event.at - start.at <= TOGETHER_S and not set(_names(event)).isdisjoint(_names(start))
                for start in starts
            )
        )
    ]


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """An event of one pod, or several openings of one of its breakers."""

    at: datetime
    kind: str
    detail: str
    boot: str


def event_rows(events: Sequence[Event]) -> list[EventRow]:
    """The events of one pod, newest first, with one row for a breaker that opened again and again."""
    rows: list[EventRow] = []
    episodes: list[tuple[str, list[Event]]] = []
    newest: dict[str, list[Event]] = {}
    for event in events:
        match = _BREAKER.fullmatch(event.detail) if event.kind == "breaker" else None
        if match is None:
            rows.append(_row(event))
            continue
        episode = newest.get(match[1])
        if episode is None or (episode[-1].at - event.at).total_seconds() > _FLAPPING_S:
            episode = newest[match[1]] = []
            episodes.append((match[1], episode))
        episode.append(event)
    for dependency, episode in episodes:
        opened = sum(event.detail.endswith("-> open") for event in episode)
        if opened < 2:
            rows += map(_row, episode)
            continue
        first, last = episode[-1], episode[0]
        detail = f"{dependency} opened {opened} times, {first.at:%H:%M} to {last.at:%H:%M}"
        rows.append(EventRow(at=last.at, kind=last.kind, detail=detail, boot=last.boot))
    return sorted(rows, key=lambda row: row.at, reverse=True)


def _row(event: Event) -> EventRow:
    return EventRow(at=event.at, kind=event.kind, detail=event.detail, boot=event.boot)


def _groups(events: Iterable[PodEvent]) -> list[_Group]:
    found: list[_Group] = []
    newest: dict[tuple[str, str], int] = {}
    for event in events:
        key = (event.kind, _change(event))
        place = newest.get(key)
        if place is not None and found[place].holds(event):
            found[place] = _Group(events=(*found[place].events, event))
            continue
        newest[key] = len(found)
        found.append(_Group(events=(event,)))
    return sorted(found, key=lambda group: -group.at)


def _names(event: PodEvent) -> tuple[str, ...]:
    return event.names or (event.server,)


def _change(event: PodEvent) -> str:
    """The change without its cause."""
    return event.detail.partition(": ")[0] if event.kind == "mode" else event.detail


def _line(group: _Group) -> PodLine | None:
    event, one = group.common, group.pods == 1
    if event.kind == "breaker":
        match = _BREAKER.fullmatch(event.detail)
        if match is None:
            return None
        verb, whose = state_verb(match[3], pods=group.pods), "its" if one else "their"
        return PodLine(at=group.at, pods=group.who, did=f"{verb} {whose} own breaker of {match[1]}")
    match = _MODE.fullmatch(event.detail)
    # The end of a ramp is no news: its beginning said that Redis is back.
    if match is None or match[2] not in _MODES or (match[1], match[2]) == ("ramping", "shared"):
        return None
    cause = f": {_short(store_error_words(match[3]))}" if match[3] and match[2] == "local" else ""
    return PodLine(at=group.at, pods=group.who, did=_MODES[match[2]][0 if one else 1] + cause)


def _short(cause: str) -> str:
    return cause if len(cause) <= _CAUSE else f"{cause[: _CAUSE - 1].rstrip()}\u2026"
