"""Since when the fleet is degraded. The beginning stays while one of the conditions stays."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Dated:
    """A condition that dates an incident."""

    #: Names of what is wrong. A breaker that is open, then probes, is one.
    keys: frozenset[str]
    since: float
    #: Refused requests may be the quota of one tenant: they date nothing worse than themselves.
    only_itself: bool = False


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The conditions of one moment, and when the fleet became degraded; ``None`` for not degraded."""

    since: float | None = None
    keys: frozenset[str] = frozenset()
    #: The keys of conditions that date more than themselves.
    worse: frozenset[str] = frozenset()

    def then(self, dated: Iterable[Dated]) -> "Episode":
        """The episode of the next moment. It has the beginning of this one while a condition of it is there:
        the end of the oldest, or a new level of an alert, makes the fleet degraded for no shorter time.
        """
        every = tuple(dated)
        worse = tuple(one for one in every if not one.only_itself)
        since = min((one.since for one in worse or every), default=None)
        found = Episode(since=since, keys=_keys(every), worse=_keys(worse))
        if since is None or self.since is None:
            return found
        if worse:
            stays, began = bool(self.worse & found.worse), min(since, self.since)
        else:
            stays, began = bool(self.keys & found.keys), self.since
        return Episode(since=began, keys=found.keys, worse=found.worse) if stays else found


def _keys(dated: Iterable[Dated]) -> frozenset[str]:
    return frozenset[str]().union(*(one.keys for one in dated))
