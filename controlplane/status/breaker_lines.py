"""Changes of breakers in lines: one for a breaker that opens again and again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.phrases import count, span
from controlplane.status.facts import Transition
from controlplane.status.incidents import NOT_CLOSED

#: Transitions of one breaker that follow each other within this time belong to one episode. So do all
#: failed probes, however long the open time between them is.
TOGETHER_S = 120.0


@dataclass(frozen=True, kw_only=True)
class BreakerLine:
    """One line of "Recent changes", for many transitions."""

    at: float
    #: When it opened for the first time.
    since: float
    flapping: str
    did: str


def breaker_lines(transitions: Iterable[Transition]) -> list[Transition | BreakerLine]:
    """Newest first, as the transitions are. Episodes with one opening stay as they are."""
    found: list[Transition | BreakerLine] = []
    for episode in _episodes(transitions):
        if sum(one.after == "open" for one in episode) > 1:
            found.append(_line(episode))
        else:
            found += episode
    return sorted(found, key=lambda one: -one.at)


def _episodes(transitions: Iterable[Transition]) -> list[list[Transition]]:
    found: list[list[Transition]] = []
    newest: dict[str, list[Transition]] = {}
    for one in transitions:
        episode = newest.get(one.dependency)
        if episode is None or not _follows(episode[-1], one):
            episode = newest[one.dependency] = []
            found.append(episode)
        episode.append(one)
    return found


def _follows(newer: Transition, older: Transition) -> bool:
    probes = newer.before in NOT_CLOSED and older.after == newer.before
    return probes or newer.at - older.at <= TOGETHER_S


def _line(episode: Sequence[Transition]) -> BreakerLine:
    last = episode[0]
    opened = [one for one in episode if one.after == "open"]
    first = opened[-1].at
    # A failed probe opens it again, but it was not closed between.
    failed = sum(one.before == "half_open" for one in opened)
    trips = len(opened) - failed
    closed = _closings(episode)
    # A trip before the episode, or one by a person, is not counted: its end is only named if it is the last.
    over = last.after == "closed"
    closings = f"closed {_times(closed)}" if closed > over else "closed" if over else ""
    parts = [
        f"opened {_times(trips)}" if trips else "",
        f"had {count(failed, 'failed probe')}" if failed else "",
        closings,
    ]
    *before, end = filter(None, parts)
    did = f"{', '.join(before)} and {end}" if before else end
    return BreakerLine(
        at=last.at, since=first, flapping=last.dependency, did=f"{did} in {span(last.at - first)}"
    )


def _closings(episode: Sequence[Transition]) -> int:
    """How often it closed after a trip that is counted. An episode is newest first."""
    closed, tripped = 0, False
    for one in reversed(episode):
        if one.after == "open" and one.before != "half_open":
            tripped = True
        elif one.after == "closed":
            closed, tripped = closed + tripped, False
    return closed


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
