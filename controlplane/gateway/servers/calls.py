"""The protection of one pod's calls: its counts of the last half minute, and how full its bulkheads are."""

from msgspec import Struct, msgpack

from controlplane.gateway.servers.rates import Key, elapsed_s
from fuseboard.contract.load import CallLoad
from fuseboard.contract.words import CallTier

#: Seconds of counting behind a rate: a pod with few calls must not jump between 0 and many.
WINDOW_S = 30.0
#: Heartbeats closer together than this share one point.
SPACING_S = 9.0
#: Dependencies of one heartbeat that are kept, packed. One needs 60 to 250 bytes.
POINT_BYTES = 8_192
#: Bytes of one heartbeat while the pod's token or environment keeps too much.
SPARSE_POINT_BYTES = 512

#: No process has more slots, and none counts more per second: a larger number is a mistake or a lie.
_MAX_SLOTS = 10_000
_MAX_MILLI = 10**9
_LONGEST_MS = 3_600_000
#: The longest queue of each of three tiers.
_MAX_PLACES = 30_000
_MAX_COUNTED = 10**9
_SHORTEST_S = 0.5
_TIERS = tuple(tier.value for tier in CallTier)


class _Slots(Struct, array_like=True, frozen=True, gc=False):
    limit: int
    active: int
    queued: int
    entered: int
    full: int
    timed_out: int


class _Calls(Struct, array_like=True, frozen=True, gc=False):
    """The part of ``CallLoad`` that is summed over the fleet, without names of fields."""

    dependency: str
    first_calls: int
    retries: int
    helped: int
    no_budget: int
    fallbacks: int
    fallback_failures: int
    observed: int
    mean_ms: int | None
    slots: tuple[_Slots, ...]
    p95_ms: int | None
    wait_p95_ms: int | None
    queue_size: int | None
    queue_predicted: int | None
    reclaimed: int
    nested: int
    exhausted: int


class _Point(Struct, frozen=True, gc=False):
    at: float
    packed: bytes
    #: Seconds since the process started, by its own clock.
    up_s: float


#: Field of ``_Calls`` -> kind of its rate.
_RATES = {
    "first_calls": "first_calls",
    "retries": "retries",
    "helped": "retries_helped",
    "no_budget": "retries_no_budget",
    "exhausted": "retries_exhausted",
    "fallbacks": "fallbacks",
    "fallback_failures": "fallback_failures",
    "observed": "observed",
}

_pack = msgpack.Encoder().encode
_unpack = msgpack.Decoder(tuple[_Calls, ...]).decode


def slot_key(dependency: str, tier: str) -> str:
    """Dependency and tier as one name; no name of a dependency has such a character in it."""
    return f"{dependency}\x1f{tier}"


class CallTrack:
    """The protection of one process's calls, as far back as a rate needs."""

    __slots__ = ("_points", "cut")

    def __init__(self) -> None:
        #: Whether something of the last heartbeat was left out.
        self.cut = False
        # A deque takes 600 bytes even without points.
        self._points: list[_Point] = []

    @property
    def size(self) -> int:
        """Bytes of all points."""
        return sum([len(point.packed) for point in self._points])

    @property
    def newest_size(self) -> int:
        return len(self._points[-1].packed) if self._points else 0

    def add(
        self, at: float, calls: tuple[CallLoad, ...], up_s: float = 0.0, *, most: int = POINT_BYTES
    ) -> None:
        """Add what a heartbeat reported, in at most ``most`` bytes."""
        points = self._points
        self.cut = False
        if not calls and not points:
            return
        kept, self.cut = _packed(calls, most)
        if len(points) > 1:
            if most <= SPARSE_POINT_BYTES:
                # Two points are enough for a rate.
                if at - points[0].at >= WINDOW_S:
                    del points[:-1]
                else:
                    del points[1:]
            elif at - points[-2].at < SPACING_S:
                points.pop()
        points.append(_Point(at, kept, up_s))
        # The oldest stays until another one is old enough to take its place.
        while len(points) > 2 and at - points[1].at >= WINDOW_S:
            del points[0]

    def newest(self) -> dict[str, _Calls]:
        """The report of the last heartbeat, by dependency."""
        if not self._points:
            return {}
        return {calls.dependency: calls for calls in _unpack(self._points[-1].packed)}

    def counts(self) -> dict[Key, int]:
        """Slots as numbers, rates in thousandths per second."""
        found: dict[Key, int] = {}
        if not self._points:
            return found
        newest = self._points[-1]
        missing = {calls.dependency: calls for calls in _unpack(newest.packed)}
        for calls in missing.values():
            _add_moment(found, calls)
        # The oldest point that a dependency can be compared with. One that a pod has only called, or
        # protected, since then has a younger point than the others.
        for point in self._points:
            counted_s = elapsed_s(point, newest)
            if not missing or counted_s < _SHORTEST_S:
                break
            for was in _unpack(point.packed):
                now = missing.get(was.dependency)
                if now is not None and _continues(was, now):
                    _add_rates(found, was, now, 1000 / counted_s)
                    del missing[was.dependency]
        return found


def _packed(calls: tuple[CallLoad, ...], most: int) -> tuple[bytes, bool]:
    """The busiest come first, so the last ones are cut."""
    kept = [_calls_of(call) for call in calls]
    packed, cut = _pack(kept), False
    while kept and len(packed) > most:
        kept, cut = kept[: min(len(kept) * 7 // 8, len(kept) * most // len(packed))], True
        packed = _pack(kept)
    return packed, cut


def _calls_of(call: CallLoad) -> _Calls:
    return _Calls(
        call.dependency,
        call.first_calls,
        call.retries,
        call.helped,
        call.no_budget,
        call.fallbacks,
        call.fallback_failures,
        call.observed,
        _bounded(call.mean_ms, _LONGEST_MS),
        tuple(
            _Slots(
                min(tier.limit, _MAX_SLOTS),
                min(tier.active, _MAX_SLOTS),
                min(tier.queued, _MAX_SLOTS),
                tier.entered,
                tier.full,
                tier.timed_out,
            )
            for tier in call.tiers
        ),
        _bounded(call.p95_ms, _LONGEST_MS),
        _bounded(call.wait_p95_ms, _LONGEST_MS),
        _bounded(call.queue_size, _MAX_PLACES),
        _bounded(call.queue_predicted, _MAX_PLACES),
        min(call.reclaimed, _MAX_COUNTED),
        min(call.nested, _MAX_COUNTED),
        call.exhausted,
    )


def _bounded(value: int | None, most: int) -> int | None:
    return None if value is None else min(value, most)


def _add_moment(found: dict[Key, int], calls: _Calls) -> None:
    found["callers", calls.dependency] = 1
    for kind, pods, value in (
        ("mean_ms", "mean_pods", calls.mean_ms),
        ("p95_ms", "p95_pods", calls.p95_ms),
        ("wait_p95_ms", "wait_p95_pods", calls.wait_p95_ms),
        ("queue_size", "queue_pods", calls.queue_size),
    ):
        if value is not None:
            found[kind, calls.dependency] = value
            found[pods, calls.dependency] = 1
    for kind, counted in (
        ("queue_predicted", calls.queue_predicted),
        ("reclaimed", calls.reclaimed),
        ("nested", calls.nested),
    ):
        if counted:
            found[kind, calls.dependency] = counted
    for tier, slots in zip(_TIERS, calls.slots, strict=False):
        name = slot_key(calls.dependency, tier)
        found["slots_limit", name] = slots.limit
        if slots.active:
            found["slots_active", name] = slots.active
        if slots.queued:
            found["slots_queued", name] = slots.queued


def _continues(was: _Calls, now: _Calls) -> bool:
    """Whether the pod counted on from ``was``: a changed policy starts the counters of its slots again."""
    return (
        len(was.slots) == len(now.slots)
        and all(getattr(now, field) >= getattr(was, field) for field in _RATES)
        and all(
            after.entered >= before.entered
            and after.full >= before.full
            and after.timed_out >= before.timed_out
            for before, after in zip(was.slots, now.slots, strict=True)
        )
    )


def _add_rates(found: dict[Key, int], was: _Calls, now: _Calls, milli: float) -> None:
    for field, kind in _RATES.items():
        if (grown := getattr(now, field) - getattr(was, field)) > 0:
            found[kind, now.dependency] = min(int(grown * milli), _MAX_MILLI)
    for tier, before, after in zip(_TIERS, was.slots, now.slots, strict=False):
        name = slot_key(now.dependency, tier)
        for kind, grown in (
            ("slots_entered", after.entered - before.entered),
            ("slots_full", after.full - before.full),
            ("slots_timed_out", after.timed_out - before.timed_out),
        ):
            if grown > 0:
                found[kind, name] = min(int(grown * milli), _MAX_MILLI)
