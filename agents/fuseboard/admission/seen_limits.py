"""The limits of vendors as this pod has seen them in the last minutes, for its heartbeats."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from msgspec import Struct

from fuseboard.contract.policy import Dependency
from fuseboard.contract.sync import MAX_SEEN, SeenLimit

#: Pods report for this time what a vendor has stated.
SEEN_S = 300.0
#: Calls are counted over this time, in steps.
LATELY_S = 600.0
STEP_S = 60.0

#: Calls made, refused by the vendor, and refused by limits of ours; charged for what others have spent.
Totals = tuple[int, int, int, int]


class Stated(Struct):
    """The number that a vendor states for one limit. Times are monotonic seconds."""

    said: int
    left: int
    at: float
    #: The first answer with this number, and how many there were.
    since: float
    answers: int = 1


class SeenLimits:
    """By dependency and limit. Belongs to the event loop."""

    def __init__(self) -> None:
        self.stated: dict[tuple[str, str], Stated] = {}
        #: Totals since the start, as they were up to ``LATELY_S`` ago.
        self._before: dict[tuple[str, str], deque[tuple[float, Totals]]] = {}

    def note(self, dependency: str, stated: Mapping[str, tuple[int, int]]) -> None:
        """An answer states, by name of our limits, what is left and how much there is."""
        now = monotonic()
        for name, (left, said) in stated.items():
            known = self.stated.get((dependency, name))
            if known is not None and known.said == said:
                known.left, known.at, known.answers = left, now, known.answers + 1
            else:
                self.stated[dependency, name] = Stated(said, left, now, now)

    def number(self, dependency: str, limit: str) -> int:
        """The number that the vendor has stated lately; 0 for unknown."""
        known = self.stated.get((dependency, limit))
        return known.said if known is not None and monotonic() - known.at <= SEEN_S else 0

    def report(
        self,
        dependencies: Iterable[Dependency],
        *,
        followed: Mapping[tuple[str, str], int],
        totals: Callable[[str, str], Totals],
        paces: Mapping[tuple[str, str], tuple[int, int]],
    ) -> tuple[SeenLimit, ...]:
        """The limits of vendors with news: first those of which a number is known."""
        now = monotonic()
        keys = [(one.name, limit.name) for one in dependencies for limit in one.vendor_limits]
        kept = set(keys)
        for key in [key for key, one in self.stated.items() if now - one.at > SEEN_S or key not in kept]:
            del self.stated[key]
        for key in self._before.keys() - kept:
            del self._before[key]
        found = [
            self._seen(key, followed.get(key, 0), totals(*key), paces.get(key, (0, 0)), now) for key in keys
        ]
        known = [one for one in found if one.said or one.followed]
        others = [one for one in found if not (one.said or one.followed) and (one.sent or one.blocked)]
        return tuple((known + others)[:MAX_SEEN])

    def _seen(
        self, key: tuple[str, str], followed: int, totals: Totals, pace: tuple[int, int], now: float
    ) -> SeenLimit:
        stated = self.stated.get(key)
        sent, refused, blocked, others = self._lately(key, totals, now)
        return SeenLimit(
            dependency=key[0],
            limit=key[1],
            said=stated.said if stated is not None else 0,
            followed=followed,
            answers=stated.answers if stated is not None else 0,
            for_ms=int((now - stated.since) * 1000) if stated is not None else 0,
            left=stated.left if stated is not None else None,
            sent=sent,
            refused=refused,
            blocked=blocked,
            others=others,
            took_ms=pace[0],
            lowest_ms=pace[1],
        )

    def _lately(self, key: tuple[str, str], totals: Totals, now: float) -> Totals:
        """How much they have grown in ``LATELY_S``, or since the limit was first looked at."""
        before = self._before.setdefault(key, deque([(now, totals)]))
        if now - before[-1][0] >= STEP_S:
            before.append((now, totals))
        while len(before) > 1 and now - before[0][0] > LATELY_S:
            before.popleft()
        _, was = before[0]
        sent, refused, blocked, others = (max(0, one - old) for one, old in zip(totals, was, strict=True))
        return sent, refused, blocked, others
