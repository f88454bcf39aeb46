"""What happened to pods, in lines: one for all pods to which the same happened at about the same time."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.status.facts import PodEvent, Transition

#: Pods notice a lost Redis one after the other, and report it with their next heartbeat.
TOGETHER_S = 30.0

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
    def names(self) -> list[str]:
        return sorted({event.server for event in self.events})


def pod_lines(events: Iterable[PodEvent]) -> list[PodLine]:
    """Newest first, as the events are."""
    return [line for group in _groups(events) if (line := _line(group)) is not None]


def own_transitions(events: Iterable[PodEvent], dependency: str) -> list[Transition]:
    """Of pods' own breakers, beside the transitions of the fleet's; newest first."""
    found = []
    for group in _groups(event for event in events if event.kind == "breaker"):
        match = _BREAKER.fullmatch(group.events[0].detail)
        if match and match[1] == dependency:
            found.append(
                Transition(
                    dependency=dependency,
                    at=group.at,
                    before=match[2],
                    after=match[3],
                    cause="own_breaker",
                    server=_who(group.names),
                )
            )
    return found


def _groups(events: Iterable[PodEvent]) -> list[_Group]:
    found: list[_Group] = []
    newest: dict[tuple[str, str], int] = {}
    for event in events:
        key = (event.kind, event.detail)
        place = newest.get(key)
        if place is not None and found[place].events[-1].at - event.at <= TOGETHER_S:
            found[place] = _Group(events=(*found[place].events, event))
            continue
        newest[key] = len(found)
        found.append(_Group(events=(event,)))
    return sorted(found, key=lambda group: -group.at)


def _line(group: _Group) -> PodLine | None:
    event, names = group.events[0], group.names
    one = len(names) == 1
    if event.kind == "breaker":
        match = _BREAKER.fullmatch(event.detail)
        if match is None:
            return None
        verb = {"open": "opened", "half_open": "probes with", "closed": "closed"}.get(match[3], match[3])
        return PodLine(
            at=group.at, pods=_who(names), did=f"{verb} {'its' if one else 'their'} own breaker of {match[1]}"
        )
    match = _MODE.fullmatch(event.detail)
    # The end of a ramp is no news: its beginning said that Redis is back.
    if match is None or match[2] not in _MODES or (match[1], match[2]) == ("ramping", "shared"):
        return None
    cause = f": {match[3]}" if match[3] and match[2] == "local" else ""
    return PodLine(at=group.at, pods=_who(names), did=_MODES[match[2]][0 if one else 1] + cause)


def _who(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} pods"
