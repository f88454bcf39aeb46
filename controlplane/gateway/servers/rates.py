"""From counters that only rise to rates per second, summed over the fleet.

Every server contributes what it counted between its newest beat and one a few seconds older.
Contributions are whole thousandths per second, so that adding and taking away a million of
them leaves nothing behind.
"""

from collections.abc import Sequence

from msgspec import Struct, msgpack

from fuseboard.contract.sync import (
    LATENCY_EDGES_US,
    Counters,
    DependencyCounters,
    RuleCounters,
    TenantCounters,
)

#: Seconds of counting behind a rate, and behind a latency percentile.
RATE_WINDOW_S = 4.0
LATENCY_WINDOW_S = 9.0

#: Beats closer together than this share one point.
_SPACING_S = 2.0

#: A rate over less than this is noise.
_SHORTEST_S = 0.5

#: What is counted, and of what: ``("tenant_refused", "t-17")``.
Key = tuple[str, str]

#: Buckets of the store's answer times.
_BUCKETS = len(LATENCY_EDGES_US) + 1


def pair(tenant: str, rule: str) -> str:
    """Tenant and rule as one name; no name of a rule has such a character in it."""
    return f"{rule}\x1f{tenant}"


class Contribution(Struct, frozen=True, gc=False):
    """What one process adds to the fleet's rates, in thousandths per second."""

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
        self.add(at, _NOTHING_COUNTED)

    @property
    def newest_size(self) -> int:
        """Bytes of the last heartbeat's counters."""
        return len(self._points[-1].packed) if self._points else 0

    @property
    def size(self) -> int:
        """Bytes of all points."""
        return sum([len(point.packed) for point in self._points])

    def add(self, at: float, packed: bytes, *, cut: bool = False) -> None:
        """Add ``Counters`` as MessagePack; with ``cut``, something was left out."""
        points = self._points
        if len(points) > 1 and at - points[-2].at < _SPACING_S:
            points.pop()
        points.append(Point(at, packed, cut))
        # The oldest stays until another one is old enough to take its place.
        while len(points) > 2 and at - points[1].at >= LATENCY_WINDOW_S:
            del points[0]

    def contribution(self) -> Contribution:
        """What this process counted lately."""
        if not self.counts:
            return NOTHING
        newest = self._points[-1]
        before = _point_before(self._points, RATE_WINDOW_S)
        longer = _point_before(self._points, LATENCY_WINDOW_S)
        if before.packed == newest.packed == longer.packed:
            return NOTHING
        now = _unpack(newest.packed)
        return Contribution(
            _counts(_unpack(before.packed), now, elapsed_s=newest.at - before.at, cut=before.cut),
            _latency(
                _unpack_answers(longer.packed).store.latency,
                now.store.latency,
                elapsed_s=newest.at - longer.at,
            ),
        )


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
        milli = self.milli
        if old.counts != new.counts:
            for key, value in new.counts.items():
                # A sum of 0 would be deleted with the first of those that add nothing.
                if value:
                    milli[key] = milli.get(key, 0) + value
            for key, value in old.counts.items():
                if value:
                    left = milli[key] - value
                    if left:
                        milli[key] = left
                    else:
                        del milli[key]
        if old.latency != new.latency:
            for bucket, value in enumerate(new.latency):
                self.latency[bucket] += value
            for bucket, value in enumerate(old.latency):
                self.latency[bucket] -= value
        return sum([milli.get(key) == value for key, value in new.counts.items()])


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
_NO_TENANT = TenantCounters(tenant="none")
_NO_RULE = RuleCounters(rule="none", asked=0)
_NO_DEPENDENCY = DependencyCounters(dependency="none")


def _point_before(points: Sequence[Point], age_s: float) -> Point:
    """The youngest point at least ``age_s`` older than the newest, or else the oldest."""
    newest = points[-1].at
    for point in reversed(points):
        if newest - point.at >= age_s:
            return point
    return points[0]


def _counts(was: Counters, now: Counters, *, elapsed_s: float, cut: bool = False) -> dict[Key, int]:
    found: dict[Key, int] = {}
    if elapsed_s < _SHORTEST_S:
        return found
    milli = 1000 / elapsed_s
    # A counter must not fall. If one does, counting starts again from here.
    for key, base, newest in (
        (_REQUESTS, was.requests, now.requests),
        (_UNKNOWN, was.unknown_tenants, now.unknown_tenants),
        (_LOCALLY, was.decided_locally, now.decided_locally),
        (_ASKED, was.store.asked, now.store.asked),
        (_TIMEOUTS, was.store.timeouts, now.store.timeouts),
        (_ERRORS, was.store.errors, now.store.errors),
    ):
        if newest > base:
            found[key] = int((newest - base) * milli)
    for reason, count in now.refused.items():
        if count > (base := was.refused.get(reason, 0)):
            found["reason", reason.value] = int((count - base) * milli)
    if now.dependencies != was.dependencies:
        _add_dependencies(found, was, now, milli, cut=cut)
    if now.tenants != was.tenants:
        _add_tenants(found, was, now, milli)
    if now.rules and now.rules != was.rules:
        # Of all tenants together, and complete.
        before, after = (TenantCounters(tenant="", rules=counters.rules) for counters in (was, now))
        if cut:
            known = {rule.rule for rule in was.rules}
            after = TenantCounters(tenant="", rules=tuple(r for r in now.rules if r.rule in known))
        _add_rules(found, "", before, after, milli)
    return found


def _add_dependencies(
    found: dict[Key, int], was: Counters, now: Counters, milli: float, *, cut: bool
) -> None:
    bases = was.dependencies
    if [base.dependency for base in bases] != [after.dependency for after in now.dependencies]:
        known = {base.dependency: base for base in bases}
        bases = tuple(
            known.get(after.dependency, after if cut else _NO_DEPENDENCY) for after in now.dependencies
        )
    for base, after in zip(bases, now.dependencies, strict=True):
        if base == after:
            continue
        name = after.dependency
        failures, slow = after.failure - base.failure, after.slow - base.slow
        if (calls := after.ok - base.ok + failures + slow + after.neutral - base.neutral) > 0:
            found["calls", name] = int(calls * milli)
        if failures > 0:
            found["failures", name] = int(failures * milli)
        if slow > 0:
            found["slow", name] = int(slow * milli)
        if after.refused and (refused := sum(after.refused.values()) - sum(base.refused.values())) > 0:
            found["refused", name] = int(refused * milli)


def _add_tenants(found: dict[Key, int], was: Counters, now: Counters, milli: float) -> None:
    """A server lists its busiest tenants only.

    One that was not listed before counts from zero when the list was complete then, and from its
    next beat otherwise.
    """
    bases = was.tenants
    if [base.tenant for base in bases] != [after.tenant for after in now.tenants]:
        known = {base.tenant: base for base in bases}
        complete = sum([base.allowed + base.refused for base in bases]) >= was.requests
        bases = tuple(known.get(t.tenant) or (_NO_TENANT if complete else t) for t in now.tenants)
    for base, after in zip(bases, now.tenants, strict=True):
        refused = max(0, after.refused - base.refused)
        if requests := refused + max(0, after.allowed - base.allowed):
            found["tenant_requests", after.tenant] = int(requests * milli)
            if refused:
                found["tenant_refused", after.tenant] = int(refused * milli)
            if after.rules:
                _add_rules(found, after.tenant, base, after, milli)


def _add_rules(
    found: dict[Key, int], tenant: str, base: TenantCounters, after: TenantCounters, milli: float
) -> None:
    """What each rule bound, refused, and would have refused."""
    known = {rule.rule: rule for rule in base.rules}
    for now in after.rules:
        was = known.get(now.rule, _NO_RULE)
        if was is _NO_RULE and (base.allowed or base.refused):
            continue  # its tenant was listed without it: how much it had counted then is not known
        name = pair(tenant, now.rule)
        for kind, before, count in (
            ("rule_asked", _asked(was, base), _asked(now, after)),
            ("rule_refused", was.refused, now.refused),
            ("rule_shadow", was.shadow, now.shadow),
            ("rule_leased", was.leased, now.leased),
        ):
            if count > before:
                found[kind, name] = int((count - before) * milli)


def _asked(rule: RuleCounters, tenant: TenantCounters) -> int:
    return tenant.allowed + tenant.refused if rule.asked is None else rule.asked


def _latency(was: tuple[int, ...], now: tuple[int, ...], *, elapsed_s: float) -> tuple[int, ...]:
    now = now[:_BUCKETS]
    if elapsed_s < _SHORTEST_S or was == now:
        return ()
    milli = 1000 / elapsed_s
    was += (0,) * (len(now) - len(was))
    return tuple([int((n - w) * milli) if n > w else 0 for w, n in zip(was, now, strict=False)])
