"""What this pod decided alone and has not reported to Redis yet."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract.words import FailurePolicy

#: The most limits that are counted, whatever the tuning says. Calls of further limits are missing from the
#: totals, and ``uncounted`` says how many.
MAX_KEYS = 50_000


@dataclass(slots=True)
class Segment:
    """The counts between two returns of Redis. Reporting it twice is harmless, because it has a name."""

    name: str
    #: By limit key: calls (or costs) that were allowed without asking Redis.
    totals: dict[bytes, int] = field(default_factory=dict)
    #: Limits of which this pod spent a share that Redis does not know of.
    spent: dict[bytes, LimitRef] = field(default_factory=dict)


class OfflineCounts:
    """Belongs to the event loop. ``changed`` is what the journal has not written yet."""

    def __init__(self) -> None:
        self._names = (f"{boot}-{n}" for boot in (token_hex(8),) for n in itertools.count(1))
        self.segment = Segment(next(self._names))
        #: To be reported, oldest first.
        self.closed: list[Segment] = []
        self.changed: dict[bytes, int] = {}
        #: The most limits counted, by the fleet's tuning.
        self.most_keys = MAX_KEYS
        #: Calls of limits that were not counted for lack of room.
        self.uncounted = 0
        #: Called with the first change since the last write or report.
        self.on_change: Callable[[], None] = lambda: None

    def note(self, demand: Demand) -> None:
        """These costs were spent without Redis."""
        totals = self.segment.totals
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            if ref.is_slot:
                continue
            if ref.limit.failure_policy is FailurePolicy.LOCAL_SHARE:
                self.segment.spent[ref.key] = ref
            if ref.key not in totals and len(totals) >= self.most_keys:
                self.uncounted += cost
                continue
            totals[ref.key] = totals.get(ref.key, 0) + cost
            if not self.changed:
                self.on_change()
            self.changed[ref.key] = self.changed.get(ref.key, 0) + cost

    def close(self) -> Segment | None:
        """Start a new segment. Returns the one that ended, unless it is empty."""
        ended, self.changed = self.segment, {}
        if not ended.totals:
            return None
        self.segment = Segment(next(self._names))
        self.closed.append(ended)
        return ended
