"""One pod, as its heartbeats describe it."""

from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.calls import POINT_BYTES, CallTrack
from controlplane.gateway.servers.duplicates import Duplicates
from controlplane.gateway.servers.fleet_size import CountedLately
from controlplane.gateway.servers.liveness import lease_of, state_after
from controlplane.gateway.servers.primitive_track import Events, PrimitiveTrack
from controlplane.gateway.servers.rates import NOTHING, Contribution, Track
from controlplane.gateway.wire.tokens import Allowance
from fuseboard.contract.sync import BreakerView, Counters, SyncRequest
from fuseboard.contract.words import BreakerState, Mode, OverrideMode

#: A process this young is counted from its start, an older one from its first beat here.
YOUNG_MS = 15_000

#: Readings of the same moment, taken at two beats, differ by the network's mood.
SAME_MOMENT_S = 2.0

#: Boots a server has left behind, kept so that their late beats are known as such.
_RETIRED_KEPT = 4

#: Beats of one server: far more than any change of state needs, far fewer than a loop run wild makes.
_BEATS_PER_S = 20.0
_BEATS_AT_ONCE = 40

_IN_TRACK = Counters()

#: Over less than this, a rate is noise.
_SHORTEST_S = 0.5


class BreakerRow(Struct, gc=False):
    """One entry of ``Server.breakers``; times in unix seconds."""

    dependency: str
    state: BreakerState
    generation: int
    since: float
    until: float | None
    override: OverrideMode | None
    local: bool
    window_calls: int
    window_failures: int
    consecutive_failures: int


def _new_allowance() -> Allowance:
    return Allowance(rate_per_s=_BEATS_PER_S, burst=_BEATS_AT_ONCE)


@dataclass(slots=True, eq=False)
class KnownServer:
    """One server as the gateway knows it. Times ending in ``_wall`` are unix seconds, others monotonic."""

    beat: SyncRequest
    seen: float
    seen_wall: float
    #: When its next heartbeat is due, in seconds after ``seen``.
    next_s: float
    started_wall: float
    state: ServerState = ServerState.ONLINE
    left_wall: float | None = None
    #: Read back from Postgres, and not heard from by this process.
    adopted: bool = False
    retired: list[str] = field(default_factory=list)
    allowance: Allowance = field(default_factory=_new_allowance)
    track: Track = field(default_factory=Track)
    #: Counts of the protection of its calls.
    calls: CallTrack = field(default_factory=CallTrack)
    #: Outcomes of its locks, of its work that must not be done twice, and of its permits.
    primitives: PrimitiveTrack = field(default_factory=PrimitiveTrack)
    #: Its own 5xx answers per second, between its last two heartbeats.
    errors_per_s: float = 0.0
    #: Requests per second that shedding would have refused if it did not only observe, likewise.
    observed_per_s: float = 0.0
    #: Priority of a tier -> its requests per second, and those that were shed, likewise.
    shed_by_priority: dict[str, tuple[float, float]] = field(default_factory=dict)
    rates: Contribution = NOTHING
    #: Whether a process of this name ever counted a request. Until then it is in no divisor of local shares.
    has_asked: bool = False
    #: Whether the process that owns the name now did. Another one can take the name without a request.
    owner_has_asked: bool = False
    #: Bytes that are kept of its heartbeats, and the token they count for; see ``fleet_bounds``.
    kept: int = 0
    kept_for: str = ""
    #: The selector of the token that its last heartbeat proved, and where the connection came from.
    token: str = ""
    address: str = ""
    #: Names in ``rates`` that no other pod counts for.
    own_names: int = 0
    #: Other processes under its name, as the row says.
    rivals: int = 0
    rivals_heard: Duplicates | None = None
    counted_lately: CountedLately | None = None
    #: Another gateway hears it, or an operator had it forgotten: nothing is written of it any more.
    handed_over: bool = False
    #: Whether Postgres may have a row of it: it was read there, or a statement with it was sent.
    may_have_row: bool = False
    #: When the last row was made of it, monotonic.
    written: float = float("-inf")
    #: Moments of the last row, so that they stay the same from row to row.
    mode_since: tuple[Mode, float] | None = None
    breaker_rows: dict[str, BreakerRow] = field(default_factory=dict)

    @property
    def spending(self) -> int:
        """Processes under this name that may be spending.

        A name that once spent counts as one, so that a pod that restarts has its share at once.
        """
        asking = 0 if self.rivals_heard is None else self.rivals_heard.asking
        if not self.has_asked and not asking:
            return 0
        return max(1, self.owner_has_asked + asking)

    def missing_for(self, boot: str, now: float) -> int | None:
        """Processes of this name that counted a request, but that the number of live pods does not contain.

        0 if it contains this one. ``None`` if this one never counted a request, or is one of too many.
        """
        rivals = self.rivals_heard
        if boot == self.beat.boot:
            restarted = self.has_asked and (rivals is None or not rivals.any_has_asked)
            return 0 if self.owner_has_asked or restarted else None
        if rivals is None or not rivals.has_asked(boot):
            return None
        new = [one for one in rivals.uncounted() if not self._was_counted(one, now)]
        if boot not in new:
            return 0
        # A name that once spent counts as one, and that one can be among them.
        asking = self.owner_has_asked + rivals.asking + len(rivals.uncounted())
        return min(len(new), asking - self.spending)

    def _was_counted(self, boot: str, now: float) -> bool:
        return self.counted_lately is not None and self.counted_lately.has(boot, now)

    def _note_counted(self, boot: str, now: float) -> None:
        if self.counted_lately is None:
            self.counted_lately = CountedLately()
        self.counted_lately.note(boot, now)

    def state_at(self, now: float) -> ServerState:
        return state_after(now - self.seen, self.next_s)

    def is_stale(self, beat: SyncRequest, *, wall: float) -> bool:
        """Whether a heartbeat is about the past: repeated, overtaken, or of a process that was replaced.

        A pod that fell silent may return with any sequence, and as any of its boots.
        """
        if beat.leaving and beat.boot != self.beat.boot:
            # A process signs off for itself only.
            return True
        if self.state is ServerState.GONE:
            return beat.boot in self.retired or self._repeats(beat)
        if self.adopted or self.state not in (ServerState.ONLINE, ServerState.LATE):
            return False
        if beat.boot == self.beat.boot:
            return self._repeats(beat)
        return beat.boot in self.retired or wall - beat.up_ms / 1000 < self.started_wall - SAME_MOMENT_S

    def may_return(self, beat: SyncRequest) -> bool:
        """Whether the owner signed off, and another process of the name continues: then that has the name."""
        return (
            self.state is ServerState.GONE
            and not beat.leaving
            and beat.boot != self.beat.boot
            and self.rivals_heard is not None
            and self.rivals_heard.is_present(beat.boot)
        )

    def adds_a_process(self, beat: SyncRequest, *, wall: float) -> bool:
        """Whether this heartbeat would count one more process that spends under this name."""
        return (
            beat.boot != self.beat.boot
            and not beat.leaving
            and has_asked(beat.counters)
            and self.is_stale(beat, wall=wall)
            and (self.rivals_heard is None or self.rivals_heard.may_count(beat.boot))
        )

    def take(
        self,
        beat: SyncRequest,
        packed: bytes,
        *,
        now: float,
        wall: float,
        next_s: float,
        call_bytes: int = POINT_BYTES,
        events: Events | None = None,
    ) -> bool:
        """Apply a heartbeat that is not stale, with its counters as MessagePack.

        ``events`` gets what became of locks since the last one. Returns whether it contains an urgent change.
        """
        last = self.beat
        restarted = beat.boot != last.boot
        news = (
            restarted
            or beat.leaving
            or self.state is not ServerState.ONLINE
            or beat.mode is not last.mode
            or _moved(last.breakers, beat.breakers)
            or beat.applied != last.applied
            or _pressed(beat) != _pressed(last)
        )
        if restarted:
            if self.owner_has_asked:
                self._note_counted(last.boot, now)
            retired = [boot for boot in self.retired if boot != beat.boot]
            self.retired = [*retired, last.boot][-_RETIRED_KEPT:]
            self.owner_has_asked = False
            self.started_wall = wall - beat.up_ms / 1000
            self.track, self.calls, self.primitives = Track(), CallTrack(), PrimitiveTrack()
            self.mode_since, self.breaker_rows = None, {}
            if self.rivals_heard is not None:
                self.rivals_heard.forget(beat.boot)
                self.count_rivals(now)
        if self.track.empty and beat.up_ms <= YOUNG_MS:
            self.track.begin(now - beat.up_ms / 1000)
        self.track.add(now, packed, beat.up_ms / 1000, cut=beat.cut > 0)
        self.calls.add(now, beat.protection, beat.up_ms / 1000, most=call_bytes)
        self._count_primitives(beat, now, events)
        # A row has no totals: the first heartbeat after a restart of the gateway would count all of them.
        # A beat that waited for a stopped gateway arrives with the next one: its own clock shows the time.
        passed_s = max(now - self.seen, (beat.up_ms - last.up_ms) / 1000)
        rates = (0.0, 0.0) if self.adopted else _load_rates(last, beat, passed_s)
        self.errors_per_s, self.observed_per_s = rates
        self.shed_by_priority = {} if self.adopted else _shed_rates(last, beat, passed_s)
        self.owner_has_asked = self.owner_has_asked or has_asked(beat.counters)
        self.has_asked = self.has_asked or self.owner_has_asked
        # The tracks have the counters, and the answer has the ids that the pod wanted.
        beat = replace(beat, counters=_IN_TRACK, want=(), protection=())
        self.beat, self.seen, self.seen_wall, self.next_s = beat, now, wall, next_s
        self.adopted = False
        self.state = ServerState.GONE if beat.leaving else ServerState.ONLINE
        self.left_wall = wall if beat.leaving else None
        return news

    def _count_primitives(self, beat: SyncRequest, now: float, events: Events | None) -> None:
        if beat.primitives is None:
            return
        if self.primitives.empty and beat.up_ms <= YOUNG_MS:
            self.primitives.begin(now - beat.up_ms / 1000)
        counted = self.primitives.add(now, beat.primitives, beat.permits)
        if events is not None and counted:
            events.update(counted)

    def record_rival(self, beat: SyncRequest, now: float, *, counted: bool, most: int) -> None:
        """A heartbeat of another process under this name; with ``counted``, its requests count."""
        if self.rivals_heard is None:
            self.rivals_heard = Duplicates()
        if beat.leaving:
            self.rivals_heard.forget(beat.boot)
        else:
            asked = counted and has_asked(beat.counters)
            self.rivals_heard.record(beat.boot, beat.sequence, now, asked=asked, most=most)
        self.count_rivals(now)

    def count_rivals(self, now: float) -> None:
        if self.rivals_heard is not None:
            before = self.rivals_heard.counted()
            lease_s = lease_of(self.next_s)
            self.rivals = self.rivals_heard.count(now, pace_s=self.next_s, lease_s=lease_s)
            for boot in before:
                if not self.rivals_heard.is_present(boot):
                    self._note_counted(boot, now)

    def strip(self, *, left_wall: float) -> None:
        """It was dropped from a full fleet: keep only what its last row needs."""
        self.handed_over, self.state, self.left_wall = False, ServerState.GONE, left_wall
        self.beat = replace(self.beat, breakers=())
        self.track, self.calls, self.primitives = Track(), CallTrack(), PrimitiveTrack()
        self.breaker_rows, self.retired = {}, []
        self.rivals, self.rivals_heard, self.counted_lately = 0, None, None

    def _repeats(self, beat: SyncRequest) -> bool:
        return beat.boot == self.beat.boot and beat.sequence <= self.beat.sequence


def contribution_of(server: KnownServer) -> Contribution:
    """The recent rates of this pod, and how full its bulkheads are."""
    rates, calls = server.track.contribution(), server.calls.counts()
    return Contribution({**rates.counts, **calls}, rates.latency) if calls else rates


def has_asked(counters: Counters) -> bool:
    """Whether a process with these counters was ever asked for a decision."""
    return bool(
        counters.requests
        or counters.store.asked
        or counters.decided_locally
        or counters.refused
        or counters.dependencies
        or counters.tenants
    )


def _pressed(beat: SyncRequest) -> tuple[object, ...]:
    """The part of a pod's load that an operator waits for: not its figures."""
    return () if beat.load is None else (beat.load.level, beat.load.unready)


def _load_rates(last: SyncRequest, beat: SyncRequest, passed_s: float) -> tuple[float, float]:
    """Errors per second, and requests per second that observe mode let pass."""
    if last.load is None or beat.load is None or last.boot != beat.boot or passed_s < _SHORTEST_S:
        return 0.0, 0.0
    errors, observed = beat.load.errors - last.load.errors, beat.load.observed - last.load.observed
    return max(0, errors) / passed_s, max(0, observed) / passed_s


def _shed_rates(last: SyncRequest, beat: SyncRequest, passed_s: float) -> dict[str, tuple[float, float]]:
    """Requests per second by priority, and those of them that were shed."""
    if last.load is None or beat.load is None or last.boot != beat.boot or passed_s < _SHORTEST_S:
        return {}
    before = {one.priority: one for one in last.load.priorities}
    found = {}
    for one in beat.load.priorities:
        was = before.get(one.priority)
        # Other tiers make the pod count from 0 again.
        if was is not None and one.asked >= was.asked and one.shed >= was.shed:
            asked, shed = one.asked - was.asked, one.shed - was.shed
            found[str(one.priority)] = (asked / passed_s, shed / passed_s)
    return found


def _moved(was: tuple[BreakerView, ...], now: tuple[BreakerView, ...]) -> bool:
    """Whether a breaker changed in what an operator waits for: not in its age, nor in its counts."""
    if len(was) != len(now):
        return True
    for old, new in zip(was, now, strict=True):
        if (
            old.state is not new.state
            or old.override is not new.override
            or old.local is not new.local
            or old.dependency != new.dependency
        ):
            return True
    return False
