"""From counters that only rise to rates per second, summed over the fleet.

Every server contributes what it counted between its newest beat and one a few seconds older.
Contributions are whole thousandths per second, so that adding and taking away a million of
them leaves nothing behind.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct, msgpack

from controlplane.gateway.servers.counter_delta import difference, rises
from fuseboard.contract.sync import LATENCY_EDGES_US, Counters, RuleCounters

#: Seconds of counting behind a rate, and behind a latency percentile.
RATE_WINDOW_S = 4.0
LATENCY_WINDOW_S = 9.0

#: Beats closer together than this share one point.
_SPACING_S = 2.0

#: A rate over less than this is noise.
_SHORTEST_S = 0.5

#: Kind of a count and its name: ``("tenant_refused", "t-17")``.
Key = tuple[str, str]

#: Buckets of the store's answer times.
_BUCKETS = len(LATENCY_EDGES_US) + 1


def pair(tenant: str, rule: str) -> str:
    """Tenant and rule as one name; no name of a rule has such a character in it."""
    return f"{rule}\x1f{tenant}"


class Contribution(Struct, frozen=True, gc=False):
    """The part of one process in the fleet's rates, in thousandths per second."""

    counts: dict[Key, int]
    #: The store's answers per bucket of ``LATENCY_EDGES_US``; empty when there were none.
    latency: tuple[int, ...] = ()


NOTHING = Contribution({})


class Point(Struct, frozen=True, gc=False):
    #: Monotonic seconds at which the beat arrived.
    at: float
    #: ``Counters`` as MessagePack, 1 KB. As objects they are a hundred per point, 10 KB that no cache
    #: holds for a whole fleet, and taking them down one by one was a tenth of a beat.
    packed: bytes
    #: Some dependencies or rules may be missing, so that one which is new here may have counted before.
    cut: bool = False
    #: Seconds since the process started, by its own clock.
    up_s: float = 0.0


class _Answers(Struct, frozen=True, gc=False):
    """The part of ``StoreCounters`` that a percentile needs."""

    latency: tuple[int, ...] = ()


class _OnlyAnswers(Struct, frozen=True, gc=False):
    """The part of ``Counters`` that a percentile needs."""

    store: _Answers = _Answers()


_pack = msgpack.Encoder().encode
_unpack = msgpack.Decoder(Counters).decode
_NOTHING_COUNTED = _pack(Counters())
_unpack_answers = msgpack.Decoder(_OnlyAnswers).decode


class Track:
    """The counters of one process, as far back as a percentile needs."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        # A deque takes 600 bytes for two points, and there are never many.
        self._points: list[Point] = []

    @property
    def empty(self) -> bool:
        return not self._points

    @property
    def counts(self) -> bool:
        """Whether there are two heartbeats to count between, or one and the start of the process."""
        return len(self._points) > 1

    @property
    def newest(self) -> Counters:
        """The counters of the last heartbeat. Raises ``IndexError`` if there is none."""
        return _unpack(self._points[-1].packed)

    def begin(self, at: float) -> None:
        """The process started at ``at``, and had counted nothing."""
        self.add(at, _NOTHING_COUNTED, 0.0)

    @property
    def newest_size(self) -> int:
        """Bytes of the last heartbeat's counters."""
        return len(self._points[-1].packed) if self._points else 0

    @property
    def size(self) -> int:
        """Bytes of all points."""
        return sum([len(point.packed) for point in self._points])

    def add(self, at: float, packed: bytes, up_s: float = 0.0, *, cut: bool = False) -> None:
        """Add ``Counters`` as MessagePack; with ``cut``, something was left out."""
        points = self._points
        if len(points) > 1 and at - points[-2].at < _SPACING_S:
            points.pop()
        points.append(Point(at, packed, cut, up_s))
        # The oldest stays until another one is old enough to take its place.
        while len(points) > 2 and at - points[1].at >= LATENCY_WINDOW_S:
            del points[0]

    def contribution(self) -> Contribution:
        """The recent rates of this process."""
        if not self.counts:
            return NOTHING
        newest = self._points[-1]
        before = _point_before(self._points, RATE_WINDOW_S)
        longer = _point_before(self._points, LATENCY_WINDOW_S)
        if before.packed == newest.packed == longer.packed:
            return NOTHING
        now, counts = _unpack(newest.packed), NOTHING.counts
        latency = NOTHING.latency
        if (counted_s := elapsed_s(before, newest)) >= _SHORTEST_S:
            counts = _counts(difference(_unpack(before.packed), now, cut=before.cut), counted_s)
        if (counted_s := elapsed_s(longer, newest)) >= _SHORTEST_S:
            answers = rises(_unpack_answers(longer.packed).store.latency, now.store.latency)
            latency = tuple([int(count * (1000 / counted_s)) for count in answers[:_BUCKETS]])
        return Contribution(counts, latency)


class Timed(Protocol):
    """A report of a process, with its arrival and the time since the process started."""

    @property
    def at(self) -> float: ...
    @property
    def up_s(self) -> float: ...


def elapsed_s(older: Timed, newer: Timed) -> float:
    """The time of counting between two points.

    A beat that waited, because this gateway was stopped, arrives at nearly the moment of the next one: the
    clock of the process then shows how long it counted.
    """
    return max(newer.at - older.at, newer.up_s - older.up_s)


class Totals:
    """The sum of all contributions."""

    def __init__(self) -> None:
        self.milli: dict[Key, int] = {}
        self.latency = [0] * _BUCKETS

    def known(self, contribution: Contribution) -> Contribution:
        """Without the names that no process contributes so far."""
        counts, milli = contribution.counts, self.milli
        if all(key in milli or key[0] in _NOT_NAMED for key in counts):
            return contribution
        kept = {key: value for key, value in counts.items() if key in milli or key[0] in _NOT_NAMED}
        return Contribution(kept, contribution.latency)

    def replace(self, old: Contribution, new: Contribution) -> int:
        """Put one server's new contribution in the place of its old one.

        Returns how many counts no other process contributes to.
        """
        milli, before, alone = self.milli, old.counts, 0
        for key, value in new.counts.items():
            if left := milli.get(key, 0) + value - before.get(key, 0):
                milli[key] = left
                alone += left == value
            else:
                milli.pop(key, None)
        for key in before.keys() - new.counts.keys():
            if left := milli.get(key, 0) - before[key]:
                milli[key] = left
            else:
                milli.pop(key, None)
        if old.latency != new.latency:
            for bucket, value in enumerate(new.latency):
                self.latency[bucket] += value
            for bucket, value in enumerate(old.latency):
                self.latency[bucket] -= value
        return alone


def percentile_us(counts: Sequence[int], share: float) -> int | None:
    """The latency below which ``share`` of the answers lie, straight lines drawn within a bucket.

    Answers beyond the last edge count as the last edge. ``None`` when there were none.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below, floor = total * share, 0, 0
    for count, edge in zip(counts, LATENCY_EDGES_US, strict=False):
        if count and below + count >= wanted:
            return round(floor + (edge - floor) * (wanted - below) / count)
        below, floor = below + count, edge
    return floor


_REQUESTS, _UNKNOWN, _LOCALLY = ("requests", ""), ("unknown_tenants", ""), ("decided_locally", "")
_ASKED, _TIMEOUTS, _ERRORS = ("asked", ""), ("timeouts", ""), ("errors", "")
#: Counts of which there are few, whatever processes invent.
_NOT_NAMED = frozenset(
    ("requests", "unknown_tenants", "decided_locally", "asked", "timeouts", "errors", "reason")
)


def _point_before(points: Sequence[Point], age_s: float) -> Point:
    """The youngest point at least ``age_s`` older than the newest, or else the oldest."""
    newest = points[-1].at
    for point in reversed(points):
        if newest - point.at >= age_s:
            return point
    return points[0]


def _counts(counted: Counters, counted_s: float) -> dict[Key, int]:
    """The rates of a difference of counters, in thousandths per second."""
    milli, store = 1000 / counted_s, counted.store
    found = {
        key: int(count * milli)
        for key, count in (
            (_REQUESTS, counted.requests),
            (_UNKNOWN, counted.unknown_tenants),
            (_LOCALLY, counted.decided_locally),
            (_ASKED, store.asked),
            (_TIMEOUTS, store.timeouts),
            (_ERRORS, store.errors),
        )
        if count
    }
    for reason, count in counted.refused.items():
        found["reason", reason.value] = int(count * milli)
    for one in counted.dependencies:
        name = one.dependency
        if calls := one.ok + one.failure + one.slow + one.neutral:
            found["calls", name] = int(calls * milli)
        if one.failure:
            found["failures", name] = int(one.failure * milli)
        if one.slow:
            found["slow", name] = int(one.slow * milli)
        if one.refused:
            found["refused", name] = int(sum(one.refused.values()) * milli)
    for tenant in counted.tenants:
        found["tenant_requests", tenant.tenant] = int((tenant.allowed + tenant.refused) * milli)
        if tenant.refused:
            found["tenant_refused", tenant.tenant] = int(tenant.refused * milli)
        _add_rules(found, tenant.tenant, tenant.rules, milli)
    _add_rules(found, "", counted.rules, milli)
    return found


def _add_rules(found: dict[Key, int], tenant: str, rules: Iterable[RuleCounters], milli: float) -> None:
    """Add the rates of rules: bound, refused, and would have refused."""
    for rule in rules:
        name = pair(tenant, rule.rule)
        for kind, count in (
            ("rule_asked", rule.asked),
            ("rule_refused", rule.refused),
            ("rule_shadow", rule.shadow),
            ("rule_leased", rule.leased),
        ):
            if count:
                found[kind, name] = int(count * milli)
