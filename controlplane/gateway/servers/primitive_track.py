"""Recent outcomes of the locks of one process, of its work that must be done once, and of its permits."""

from collections import Counter
from typing import Any, TypeAlias

from msgspec import Struct, msgpack

from fuseboard.contract.primitives import LockCounters, OnceCounters, Primitives
from fuseboard.contract.sync import PermitCounters

#: Seconds of counting behind what a row contains. A lock fails rarely, so a shorter time would show nothing.
WINDOW_S = 600.0
#: Heartbeats closer together than this share one point.
SPACING_S = 60.0
#: Bytes of a named lock in memory, with its entry.
NAMED_BYTES = 200
_MAX_NUMBER = 10**12


class _Counts(Struct, array_like=True, frozen=True, gc=False):
    locks: LockCounters = LockCounters()
    once: OnceCounters = OnceCounters()
    permits: PermitCounters = PermitCounters()


class _Point(Struct, frozen=True, gc=False):
    at: float
    packed: bytes


_pack = msgpack.Encoder().encode
_unpack = msgpack.Decoder(_Counts).decode
_NOTHING = _pack(_Counts())

#: Kind (``locks``, ``once`` or ``permits``) and name of a count -> how often.
Events: TypeAlias = Counter[tuple[str, str]]


class PrimitiveTrack:
    """The counters of one process, as far back as ``WINDOW_S``."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        # A deque takes 600 bytes even without points.
        self._points: list[_Point] = []

    @property
    def empty(self) -> bool:
        return not self._points

    @property
    def size(self) -> int:
        """Bytes of all points."""
        return sum([len(point.packed) for point in self._points])

    def begin(self, at: float) -> None:
        """The process started at ``at``, and had counted nothing."""
        self._points.append(_Point(at, _NOTHING))

    def add(self, at: float, primitives: Primitives, permits: PermitCounters | None = None) -> Events:
        """Add what a heartbeat reported. Returns what was counted since the last one."""
        points = self._points
        packed = _pack(_Counts(primitives.locks, primitives.once, permits or PermitCounters()))
        if packed == _NOTHING and all(point.packed == _NOTHING for point in points[-1:]):
            # Most pods use neither. The newest point is enough to count from.
            self._points = [_Point(at, _NOTHING)]
            return Counter()
        grown = _difference(points[-1].packed, packed) if points else Counter()
        if points and points[-1].packed == packed:
            packed = points[-1].packed  # shared
        if len(points) > 1 and at - points[-2].at < SPACING_S:
            points.pop()
        points.append(_Point(at, packed))
        # The oldest stays until another one is old enough to take its place.
        while len(points) > 2 and at - points[1].at >= WINDOW_S:
            del points[0]
        return grown

    def lately(self) -> Events:
        """Counts of about ``WINDOW_S``."""
        if len(self._points) < 2:
            return Counter()
        return _difference(self._points[0].packed, self._points[-1].packed)


def _difference(was: bytes, now: bytes) -> Events:
    if was == now:
        return Counter()
    found: Events = Counter()
    before, after = _unpack(was), _unpack(now)
    for kind in ("locks", "once", "permits"):
        old, new = getattr(before, kind), getattr(after, kind)
        for name in new.__struct_fields__:
            # A counter must not fall. If one does, counting starts again from here.
            if (grown := getattr(new, name) - getattr(old, name)) > 0:
                found[kind, name] = min(grown, _MAX_NUMBER)
    return found


def primitives_row(primitives: Primitives | None, lately: Events, seen_wall: float) -> dict[str, Any] | None:
    """The column of a pod; 0 is left out. ``None`` for a pod that does not report its locks."""
    if primitives is None:
        return None
    found: dict[str, Any] = {}
    for (kind, name), number in lately.items():
        if kind != "permits":
            found.setdefault(kind, {})[name] = number
    if primitives.holding:
        found["holding"] = primitives.holding
        found["longest_since"] = round(seen_wall - primitives.longest_ms / 1000, 3)
    if primitives.held:
        found["held"] = [[lock.name, round(seen_wall - lock.held_ms / 1000, 3)] for lock in primitives.held]
    return found


def permits_row(lately: Events) -> dict[str, int]:
    """The column of a pod that is a sidecar; 0 is left out."""
    return {name: number for (kind, name), number in lately.items() if kind == "permits"}
