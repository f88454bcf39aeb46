"""When no pod used Redis: nothing moved the fleet's breakers then, and no pod saw their state."""

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from fuseboard.contract.words import Mode

#: A pod in one of these modes decides locally.
ALONE = (Mode.LOCAL, Mode.DRILL)
#: The first mode of a new pod has none before it.
_CHANGE = re.compile(r"(?:(\w+) -> )?(\w+)")
#: Pods that start together are without Redis for a moment, which is no outage.
_SHORTEST_S = 1.0
#: A pod reports its first mode a moment after its start.
_START_S = 5.0

Span = tuple[float, float]


class Pod(Protocol):
    """The fields of ``facts.Server`` that this module reads."""

    @property
    def mode(self) -> str: ...
    @property
    def mode_since(self) -> float | None: ...
    @property
    def started_at(self) -> float | None: ...


class Change(Protocol):
    """The fields of ``facts.PodEvent`` that this module reads."""

    @property
    def kind(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def pods(self) -> int: ...
    @property
    def at(self) -> float: ...
    @property
    def last(self) -> float: ...


def times_without_redis(servers: Sequence[Pod], events: Iterable[Change], now: float) -> list[Span]:
    """From the modes of the live pods, and from the changes of the last day, which are newest first.

    Changes say how many pods they are about, not which: the number of pods without Redis is counted back
    from now, and compared with the number of live pods of now. So after that number changed, the result is
    approximate: a time in which some pods of a larger fleet still used Redis can be among these times, and a
    time in which no pod of a smaller fleet did can be missing. The page says so.
    """
    alone = [server for server in servers if server.mode in ALONE]
    if not servers:
        return []
    found: list[Span] = []
    number, end = len(alone), 0.0
    if number == len(servers):
        # A pod that was never connected has not lost Redis: the outage is as old as for the others.
        lost = [one for one in alone if (one.mode_since or 0.0) > (one.started_at or 0.0) + _START_S]
        begun = max((one.mode_since or now for one in lost or alone), default=now)
        found.append((begun, now))
    for event in events:
        before, after = modes_of(event.detail) if event.kind == "mode" else ("", "")
        pods = event.pods
        if before in ALONE and after not in ALONE:
            number += pods
            if number >= len(servers) and not end:
                end = event.at
        elif after in ALONE and before not in ALONE:
            if end and number - pods < len(servers):
                begun = min(event.last or event.at, end)
                if end - begun >= _SHORTEST_S:
                    found.append((begun, end))
                end = 0.0
            number = max(0, number - pods)
    return sorted(found)


def modes_of(detail: str) -> tuple[str, str]:
    """The mode before and after a change, in its words."""
    match = _CHANGE.match(detail)
    return (match[1] or "", match[2]) if match else ("", "")
