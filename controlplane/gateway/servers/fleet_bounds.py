"""Bounds on what one environment uses of a gateway: bytes of heartbeats, places of pods, and new names.

A heartbeat may have 256 KiB, and a token can bring thousands of pods, so without these bounds a few
hundred pods could fill the memory of the process. A pod over a bound is still present, with its
configuration, its mode, and its totals; ``fuseboard.contract.heartbeat_size`` says what is cut first.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from msgspec import msgpack
from msgspec.structs import replace

from controlplane.gateway.servers import calls
from controlplane.gateway.servers.duplicates import MAX_RIVALS, SPARSE_RIVALS
from controlplane.gateway.servers.primitive_track import NAMED_BYTES
from fuseboard.contract.heartbeat_size import cut_to, keep_breakers, keep_named_locks
from fuseboard.contract.sync import SyncRequest

if TYPE_CHECKING:
    from controlplane.gateway.servers.server import KnownServer


class Bounds(NamedTuple):
    """The part of one pod that is kept."""

    #: Counters of one heartbeat, packed.
    point_bytes: int
    #: Its report of what protects its calls, packed.
    call_bytes: int
    breakers: int
    #: Other processes under its name.
    rivals: int
    #: Whether it keeps failed calls, and names of locks.
    details: bool = False
    #: Whether it keeps the cause of its pressure.
    cause: bool = True


#: A pod of an ordinary service needs 1 to 4 KB of counters.
ORDINARY = Bounds(16_384, calls.POINT_BYTES, breakers=500, rivals=MAX_RIVALS, details=True)
#: While its token or its environment keeps too much: hardly more than the totals.
SPARSE = Bounds(256, calls.SPARSE_POINT_BYTES, breakers=4, rivals=SPARSE_RIVALS)
#: An environment that keeps this many percent of its bound keeps only this of a pod. So 50,000 pods fit
#: into the container of the gateway.
CROWDED_PERCENT = 125
CROWDED = SPARSE._replace(call_bytes=0, breakers=1, cause=False)

#: Bounds of the pods of one token, and of one environment. Both are estimates of memory.
TOKEN_BYTES = 96 * 1024 * 1024
ENVIRONMENT_BYTES = 128 * 1024 * 1024

#: Bytes of figures for each byte of the newest counters: names and numbers become objects.
_FIGURES = 6
#: Bytes of a breaker, with the entry of its row.
_BREAKER_BYTES = 700
#: Bytes of the failures of one dependency, and of each kind or call among them.
_FAILURES_BYTES, _FAILED_BYTES = 400, 200
#: Bytes of another process under the name of a pod.
_RIVAL_BYTES = 300
#: Bytes of a name that only one pod counts for: the name, the sum, and their entries.
_NAME_BYTES = 250

#: Seconds for which a refused name counts.
REFUSED_WINDOW_S = 60.0
#: A refused pod never waits longer for its next attempt.
LONGEST_WAIT_S = 60.0

_pack = msgpack.Encoder().encode


class Kept:
    """Counts what an environment keeps."""

    def __init__(self, *, token_bytes: int = TOKEN_BYTES, environment_bytes: int = ENVIRONMENT_BYTES) -> None:
        self.bytes = 0
        #: Heartbeats of which something was left out, by the pod that sent it or here.
        self.cut_beats = 0
        self._by_token: dict[str, int] = {}
        self._token_bytes = token_bytes
        self._environment_bytes = environment_bytes

    def bounds(self, token: str) -> Bounds:
        """The bounds of a pod of this token now."""
        if not self.is_full(token):
            return ORDINARY
        return CROWDED if self.bytes * 100 > CROWDED_PERCENT * self._environment_bytes else SPARSE

    def is_full(self, token: str) -> bool:
        return self.bytes > self._environment_bytes or self._by_token.get(token, 0) > self._token_bytes

    def note(self, server: "KnownServer", token: str) -> None:
        """Count what this pod keeps now."""
        self.forget(server)
        size = _BREAKER_BYTES * len(server.beat.breakers) + _NAME_BYTES * server.own_names
        for failures in server.beat.failures:
            size += _FAILURES_BYTES + _FAILED_BYTES * (len(failures.kinds) + len(failures.last))
        if server.beat.primitives is not None:
            size += NAMED_BYTES * len(server.beat.primitives.held) + server.primitives.size
        size += 2 * _NAME_BYTES * (len(server.beat.uncharged) + 2 * len(server.beat.seen))
        for track in (server.track, server.calls):
            size += track.size + _FIGURES * track.newest_size
        if server.rivals_heard is not None:
            size += _RIVAL_BYTES * len(server.rivals_heard)
        if server.counted_lately is not None:
            size += _RIVAL_BYTES * len(server.counted_lately)
        server.kept, server.kept_for = size, token
        self.bytes += size
        self._by_token[token] = self._by_token.get(token, 0) + size

    def forget(self, server: "KnownServer") -> None:
        """This pod keeps nothing any more."""
        token, size = server.kept_for, server.kept
        server.kept = 0
        self.bytes -= size
        left = self._by_token.get(token, 0) - size
        if left > 0:
            self._by_token[token] = left
        else:
            self._by_token.pop(token, None)


def cut_to_bounds(beat: SyncRequest, bounds: Bounds) -> tuple[SyncRequest, bytes, bool]:
    """Return what is kept of a heartbeat, its packed counters, and whether something was left out."""
    was_cut = beat.cut > 0
    if not bounds.cause and beat.load is not None and beat.load.cause:
        beat, was_cut = replace(beat, load=replace(beat.load, cause="")), True
    packed = _pack(beat.counters)
    if len(packed) > bounds.point_bytes:
        # Only the counters are in these bytes: to leave out anything else would not make them fewer.
        counters = replace(beat, want=(), protection=(), breakers=(), failures=(), primitives=None)
        counters, packed = cut_to(counters, bounds.point_bytes, lambda cut: _pack(cut.counters))
        beat, was_cut = replace(beat, want=(), counters=counters.counters, cut=counters.cut), True
    if not bounds.details and beat.failures:
        beat, was_cut = replace(beat, failures=(), cut=beat.cut + len(beat.failures)), True
    if not bounds.details and beat.primitives is not None and beat.primitives.held:
        beat, was_cut = keep_named_locks(beat, 0), True
    if len(beat.breakers) > bounds.breakers:
        beat, was_cut = keep_breakers(beat, bounds.breakers), True
    return beat, packed, was_cut


class Room:
    """The pods of a fleet by the token that brought them, the one that was silent longest first.

    One token can invent pods until the fleet is full. It must not lock out the pods of other tokens.
    """

    def __init__(self) -> None:
        #: Pods that never counted a request.
        self._idle: dict[str, None] = {}
        #: Pods read back from Postgres have no token until their first heartbeat.
        self._by_token: dict[str, dict[str, None]] = {}

    def take(self, server: "KnownServer") -> None:
        """This pod was heard now, with the token ``server.kept_for``."""
        name = server.beat.server
        if not server.spending:
            self._idle[name] = None
        self._by_token.setdefault(server.kept_for, {})[name] = None

    def leave(self, server: "KnownServer") -> None:
        """Forget this pod, or what was known of it until now."""
        name = server.beat.server
        self._idle.pop(name, None)
        pods = self._by_token.get(server.kept_for, {})
        pods.pop(name, None)
        if not pods:
            self._by_token.pop(server.kept_for, None)

    def to_drop(self, token: str) -> str | None:
        """Whom to drop for a new pod of this token: one without requests, or one of the token with most pods.

        ``None`` if this token has as many pods as any other one.
        """
        if self._idle:
            return next(iter(self._idle))
        most = max(self._by_token.values(), key=len, default={})
        own = self._by_token.get(token, {})
        return next(iter(most)) if len(most) > len(own) + 1 else None


class RefusedNames:
    """Refusals of the last minute, by second. Times are monotonic."""

    def __init__(self) -> None:
        self.total = 0
        self._seconds: deque[tuple[int, int]] = deque()

    def add(self, now: float) -> bool:
        """Count one refusal. Returns whether it is the first within a minute."""
        first = not self.lately(now)
        self.total += 1
        second = int(now)
        count = self._seconds.pop()[1] if self._seconds and self._seconds[-1][0] == second else 0
        self._seconds.append((second, count + 1))
        return first

    def lately(self, now: float) -> int:
        while self._seconds and self._seconds[0][0] < now - REFUSED_WINDOW_S:
            self._seconds.popleft()
        return sum(count for _, count in self._seconds)

    def wait_s(self, own_s: float, now: float, *, per_min: int) -> float:
        """When to try again: after the others that wait, so that they do not all return at once."""
        return max(own_s, min(LONGEST_WAIT_S, 60.0 * self.lately(now) / per_min))
