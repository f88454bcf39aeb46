"""Decisions that this pod made alone and has not reported to Redis yet."""

import itertools
import math
from collections.abc import Callable
from secrets import token_hex
from time import monotonic

from msgspec import Struct, field

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.offline_fields import SHORTEST_S, part_suffix
from fuseboard.contract.policy import Limit
from fuseboard.contract.shares import divides_what_is_left
from fuseboard.contract.words import FailurePolicy

#: The most limits that are counted, whatever the tuning says. Calls of further limits are missing from the
#: totals, and ``uncounted`` says how many.
MAX_KEYS = 50_000
#: The precision of the time of a charge.
MOMENT_S = 0.000_002
#: While nobody has said the time, it is looked up again this often.
NO_TIME_S = 1.0


class Asked(Struct):
    """The charges of a segment's report in one domain: the same, however often it is sent."""

    #: Also those of which all was given back, with 0. They are not sent.
    refs: list[tuple[LimitRef, int]]
    #: The store time of the first report: in a later period, nothing is charged.
    store_us: int
    #: The corrections that are in it.
    corrected: dict[bytes, int]
    #: Redis has counted it.
    counted: bool = False


class Segment(Struct):
    """The counts between two returns of Redis. Reporting it twice is harmless, because it has a name."""

    name: str
    #: By limit key and span of time (``contract.offline_fields``): calls (or costs) that were allowed without
    #: asking Redis. From files of version 0.1, by limit key alone.
    totals: dict[bytes, int] = field(default_factory=dict)
    #: Limits of which this pod spent a share that Redis does not know of.
    spent: dict[bytes, LimitRef] = field(default_factory=dict)
    #: When it was closed; monotonic seconds.
    until: float = 0.0
    #: By limit key: what its calls cost more, or less, as they said after it was closed.
    corrected: dict[bytes, int] = field(default_factory=dict)
    #: By domain: what was sent, also if no answer came.
    asked: dict[bytes, Asked] = field(default_factory=dict)
    #: A pod that has ended left it on disk.
    adopted: bool = False


class _Place:
    """Where the calls of a limit are counted until a moment of the monotonic clock."""

    __slots__ = ("begun", "limit", "name", "until")

    def __init__(self, name: bytes, limit: Limit, begun: float, until: float) -> None:
        self.name, self.limit, self.begun, self.until = name, limit, begun, until


class OfflineCounts:
    """Belongs to the event loop. ``changed`` is what the journal has not written yet.

    It counts ``most_keys`` limits, and half as many further spans of them. When those are full, the time of
    further calls is unknown, and they are counted nevertheless.
    """

    def __init__(self, fleet_offset_s: Callable[[], float | None] = lambda: None) -> None:
        self._names = (f"{boot}-{n}" for boot in (token_hex(8),) for n in itertools.count(1))
        #: Server time minus the monotonic clock; ``None`` until a server has said the time.
        self._fleet_offset_s = fleet_offset_s
        #: By limit key, in this segment.
        self._places: dict[bytes, _Place] = {}
        self.segment = Segment(next(self._names))
        #: To be reported, oldest first.
        self.closed: list[Segment] = []
        self.changed: dict[bytes, int] = {}
        #: A call of this segment cost less than what the journal may have written.
        self.lowered = False
        #: The most limits counted, by the fleet's tuning.
        self.most_keys = MAX_KEYS
        #: Calls of limits that were not counted for lack of room.
        self.uncounted = 0
        #: Called with the first change since the last write or report.
        self.on_change: Callable[[], None] = lambda: None

    def note(self, demand: Demand, now: float) -> None:
        """These costs were spent without Redis at a moment of the monotonic clock."""
        totals = self.segment.totals
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            if ref.is_slot:
                continue
            place = self._places.get(ref.key)
            # By identity: a limit that changed may be of another length, or charged in another way.
            if place is None or now >= place.until or place.limit is not ref.limit:
                place = self._enter(ref, now, place)
                if place is None:
                    self.uncounted += cost
                    continue
            name = place.name
            totals[name] = totals.get(name, 0) + cost
            if not self.changed:
                self.on_change()
            self.changed[name] = self.changed.get(name, 0) + cost

    def correct(self, ref: LimitRef, amount: int, at: float) -> None:
        """A call that was noted at a moment of the monotonic clock cost ``amount`` more, or less.

        What was reported since stays as it is. What is on disk is corrected when it is written anew, and when
        this pod ends.
        """
        for segment in self.closed:
            if at < segment.until and ref.key in segment.spent:
                segment.corrected[ref.key] = segment.corrected.get(ref.key, 0) + amount
                return
        place = self._places.get(ref.key)
        if place is None or ref.is_slot or not place.begun <= at + MOMENT_S or at >= place.until:
            return
        name, totals = place.name, self.segment.totals
        amount = max(amount, -totals.get(name, 0))
        totals[name] = totals.get(name, 0) + amount
        changed = self.changed.get(name, 0) + amount
        self.changed[name], self.lowered = max(0, changed), self.lowered or changed < 0

    def close(self) -> Segment | None:
        """Start a new segment. Returns the one that ended, unless it is empty."""
        ended, self.changed = self.segment, {}
        if not ended.totals:
            return None
        ended.until = monotonic()
        self.segment, self._places, self.lowered = Segment(next(self._names)), {}, False
        self.closed.append(ended)
        return ended

    @property
    def unreported(self) -> int:
        """Calls (or costs) that Redis does not know of yet."""
        return sum(sum(segment.totals.values()) for segment in (*self.closed, self.segment))

    def _enter(self, ref: LimitRef, now: float, place: _Place | None) -> _Place | None:
        """Where the limit is counted from now on; ``None`` if there is no room for one more limit."""
        limit, totals = ref.limit, self.segment.totals
        if place is None and len(self._places) >= self.most_keys:
            return None
        start, length, until = self._span(limit, now)
        name = ref.key + part_suffix(start, length, shadow=limit.shadow).encode()
        if name not in totals and len(totals) - len(self._places) >= self.most_keys // 2:
            name = ref.key + part_suffix(0, 0, shadow=limit.shadow).encode()
            until = math.inf
            if place is not None and place.name in totals and place.name != name:
                # It takes the place of the last span, so that no limit needs more room than one entry.
                totals[name] = totals.get(name, 0) + totals.pop(place.name)
        if limit.failure_policy is FailurePolicy.LOCAL_SHARE or divides_what_is_left(limit):
            self.segment.spent[ref.key] = ref
        # A call that was counted under this name, or has come under it now, can be corrected there.
        begun = now if place is None or (place.name != name and place.name in totals) else place.begun
        found = self._places[ref.key] = _Place(name, limit, begun, until)
        return found

    def _span(self, limit: Limit, now: float) -> tuple[int, int, float]:
        """The span of fleet time that contains now: start and length, and its end by the monotonic clock."""
        offset_s = self._fleet_offset_s()
        if offset_s is None:
            return 0, 0, now + NO_TIME_S
        time_s = now + offset_s
        if limit.period is not None:
            began, ends = period_around(int(time_s * 1_000_000), limit.period, limit.time_zone)
            start, length = began // 1_000_000, (ends - began) // 1_000_000
        else:
            length = max(SHORTEST_S, math.ceil(limit.window_ms / 1000))
            start = int(time_s // length) * length
        return start, length, now + (start + length - time_s)
