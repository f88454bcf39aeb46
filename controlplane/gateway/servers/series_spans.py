"""The counts of an environment in each 10 s, in memory until Postgres has them.

The difference between two heartbeats is spread evenly over the time between them, in whole numbers, so
the sum over all spans is exactly what pods counted. A heartbeat counts only from the one before it. If one in
between is not known here, the next look at Postgres decides: with another gateway, the difference is
left out, so that two gateways never count the same call.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

from msgspec import msgpack

from controlplane.gateway.servers.calls import CallTrack
from controlplane.gateway.servers.counter_delta import all_tenants_listed, difference, tenants_left_out
from controlplane.gateway.servers.series_counts import (
    THE_FLEET,
    Counted,
    Thing,
    add_up,
    counted_by,
    counted_of_calls,
    pod_of,
)
from controlplane.gateway.servers.top_refusals import TopRefusals
from controlplane.series.kinds import DEPENDENCY, FLEET, POD, RULE, SPAN_S, TENANT, How
from fuseboard.contract.sync import Counters, SyncRequest
from fuseboard.contract.words import Mode

#: Spans in memory: how far back a silence is filled, and for how long Postgres can be down.
KEPT_SPANS = 30
KEPT_S = KEPT_SPANS * SPAN_S

#: Listed of each span, the busiest. The others are below the floor of the span.
TOP_TENANTS = 200
TOP_RULES = 600
#: Kept of each span. More are invented, or a list of an attacker.
TOP_DEPENDENCIES = 1_000
#: Things of one span before the busiest are chosen.
MAX_THINGS = 20_000
#: Pods with a series, of one gateway and environment. The totals contain all pods.
MAX_PODS = 2_000
#: Things of one span after the busiest are chosen: this many are in memory for 30 spans.
MAX_CHOSEN = 1 + TOP_TENANTS + TOP_RULES + TOP_DEPENDENCIES + MAX_PODS

#: A process this young is counted from its start if it is heard for the first time.
YOUNG_MS = 15_000

#: Pods between two pauses of ``collect``.
_CHUNK = 20

_unpack = msgpack.Decoder(Counters).decode
_NOTHING = Counters()
_PODS_LOCAL = FLEET.place("pods_local")
_PRESSURE, _CPU, _IN_FLIGHT = (POD.place(name) for name in ("pressure", "cpu", "in_flight"))


@dataclass(slots=True)
class Span:
    """Ten seconds, from ``at`` in unix seconds."""

    at: int
    counted: Counted = field(default_factory=dict)
    #: How many pods were heard, and how many of them were in a local mode.
    heard: int = 0
    local: int = 0
    #: Their names, until the busiest are chosen: 30 spans of 50,000 pods would need 100 MB.
    heard_names: set[str] = field(default_factory=set)
    local_names: set[str] = field(default_factory=set)
    #: Pods with a series.
    pods: int = 0
    known: int = 0
    covered_ms: int = 0
    #: 0 if all tenants are listed. Otherwise what the busiest of the others asked, as far as it is known.
    floor: int = 0
    #: The busiest are chosen: no other tenant is added.
    chosen: bool = False
    #: Postgres does not have it like this.
    dirty: bool = True

    def record(self, name: str, *, local: bool, began_before: bool) -> None:
        """A pod counted in this span. ``began_before``: its earlier heartbeat was before the span.

        Without names, a pod whose earlier heartbeat was in the span is already in the numbers.
        """
        if self.chosen:
            self.heard += began_before
            self.local += local and began_before
            return
        self.heard_names.add(name)
        self.heard = len(self.heard_names)
        if local:
            self.local_names.add(name)
            self.local = len(self.local_names)


@dataclass(slots=True)
class _Piece:
    """The counters of a pod at two heartbeats."""

    name: str
    since: float
    until: float
    #: Its counters, packed; the earlier ones are empty at the start of the process.
    was: bytes
    now: bytes
    #: Lists of the earlier ones are not complete.
    cut: bool
    #: Lists of the newer ones are not complete.
    now_cut: bool
    mode: Mode
    gauges: dict[int, int]


@dataclass(slots=True)
class _Pod:
    """The newest heartbeat of a pod, and what is not in spans yet."""

    boot: str
    sequence: int
    at: float
    packed: bytes
    cut: bool
    #: Up to the newest heartbeat, for the next look.
    piece: _Piece | None = None
    #: A heartbeat within it is not known here.
    doubt: _Piece | None = None


class FleetSeries:
    def __init__(self, tops: TopRefusals | None = None) -> None:
        """``tops`` get the refusals of the same differences, so that both have the same sums."""
        self.spans: dict[int, Span] = {}
        self._tops = tops or TopRefusals()
        #: Whether no other gateway serves this environment, and when that was looked up (monotonic).
        self.alone = False
        self.looked_at = float("-inf")
        #: Pieces that were left out, because another gateway may have counted them.
        self.left_out = 0
        self._pods: dict[str, _Pod] = {}
        self._heard: set[str] = set()
        self._doubted: set[str] = set()
        #: Pieces of processes that were replaced, and those before a doubt.
        self._ended: list[_Piece] = []
        #: Refusals of bulkheads since the last look. They count when they arrive: an hour needs no more.
        self._of_calls: Counted = {}
        self._began: float | None = None
        #: A tenant was erased from Postgres, so that the writer must ask for the numbers of things again.
        self.erased = False

    def record(self, beat: SyncRequest, packed: bytes, now: float, *, calls: CallTrack | None = None) -> None:
        """A heartbeat that is not stale. Only notes it: this is in its path.

        ``packed`` are its counters, and ``calls`` what its pod reported of calls until then.
        """
        name, pod = beat.server, self._pods.get(beat.server)
        known = pod is not None and pod.boot == beat.boot
        if beat.protection and calls is not None:
            self._record_slots(beat, calls, pod if known else None)
        if pod is None or not known:
            if pod is not None:
                self._end(pod)
                self._drop_doubt(name, pod)
            # A pod that started a moment ago counts from its start.
            pod = _Pod(beat.boot, 0, now - beat.up_ms / 1000, b"", cut=False)
            self._pods[name] = pod
            known = beat.up_ms <= YOUNG_MS
        if known:
            self._add(beat, pod, packed, now)
        pod.sequence, pod.at, pod.packed, pod.cut = beat.sequence, now, packed, beat.cut > 0

    def _record_slots(self, beat: SyncRequest, calls: CallTrack, pod: _Pod | None) -> None:
        if pod is None:
            # Another gateway may have counted what an older process refused.
            if beat.up_ms > YOUNG_MS:
                return
            counted = counted_of_calls({}, beat.protection, cut=False)
        elif self.alone or beat.sequence == pod.sequence + 1:
            counted = counted_of_calls(calls.newest(), beat.protection, cut=calls.cut)
        else:
            return
        add_up(self._of_calls, counted, most=TOP_DEPENDENCIES)

    def _add(self, beat: SyncRequest, pod: _Pod, packed: bytes, now: float) -> None:
        name, piece = beat.server, pod.piece
        gauges = _gauges(beat)
        follows = beat.sequence == pod.sequence + 1
        if follows and piece is not None:
            piece.until, piece.now, piece.mode, piece.gauges = now, packed, beat.mode, gauges
            piece.now_cut = beat.cut > 0
            return
        new = _Piece(name, pod.at, now, pod.packed, packed, pod.cut, beat.cut > 0, beat.mode, gauges)
        if follows:
            pod.piece = new
            self._heard.add(name)
            return
        self._end(pod)
        if pod.doubt is None:
            pod.doubt = new
            self._doubted.add(name)
        else:
            # Only one is kept of each pod, so that they need little memory.
            self.left_out += 1

    def _end(self, pod: _Pod) -> None:
        if pod.piece is not None:
            self._ended.append(pod.piece)
            pod.piece = None

    def _drop_doubt(self, name: str, pod: _Pod) -> None:
        if pod.doubt is not None:
            pod.doubt = None
            self._doubted.discard(name)
            self.left_out += 1

    def collect(
        self, now: float, wall: float, *, known: int, present: Callable[[], Container[str]]
    ) -> Iterator[None]:
        """Add what was heard since the last time to the spans; stops after every 20 pods.

        ``known`` is how many pods should be heard, and ``present`` returns the names of those that may be.
        """
        self._forget_old(wall)
        began = self._began if self._began is not None else now
        self._began = now
        self._cover(max(began, now - KEPT_S), now, wall, known)
        for number, piece in enumerate(self._pieces(), start=1):
            self._take(piece, wall - now)
            if number % _CHUNK == 0:
                yield
        self._take_slots(int(wall) // SPAN_S * SPAN_S)
        names = present()
        for name in [name for name in self._pods if name not in names and name not in self._heard]:
            self._drop_doubt(name, self._pods.pop(name))
        for span in self.spans.values():
            if not span.chosen and span.at + 2 * SPAN_S <= wall:
                _choose(span)

    def _take_slots(self, at: int) -> None:
        counted, self._of_calls = self._of_calls, {}
        if counted:
            self._add_part(self._span(at), counted, 0, 1, 1)

    def _pieces(self) -> list[_Piece]:
        """Pieces that can be counted now."""
        pieces, self._ended = self._ended, []
        heard, self._heard = self._heard, set()
        for name in heard:
            if (pod := self._pods.get(name)) is not None and pod.piece is not None:
                pieces.append(pod.piece)
                pod.piece = None
        for name in list(self._doubted):
            pod = self._pods[name]
            # Whether another gateway was there then is known after the next look.
            if pod.doubt is not None and pod.doubt.until < self.looked_at:
                if self.alone:
                    pieces.append(pod.doubt)
                    pod.doubt = None
                    self._doubted.discard(name)
                else:
                    self._drop_doubt(name, pod)
        return pieces

    def dirty(self, *, before: float) -> list[Span]:
        """Spans that ended before this unix time and that Postgres does not have."""
        return [span for _, span in sorted(self.spans.items()) if span.dirty and span.at + SPAN_S <= before]

    def _forget_old(self, wall: float) -> None:
        for at in [at for at in self.spans if at + SPAN_S <= wall - KEPT_S]:
            del self.spans[at]

    def _span(self, at: int) -> Span:
        span = self.spans.get(at)
        if span is None:
            span = self.spans[at] = Span(at)
        return span

    def _cover(self, began: float, now: float, wall: float, known: int) -> None:
        for at, ms in _parts(began, now, wall - now):
            span = self._span(at)
            span.covered_ms = min(SPAN_S * 1000, span.covered_ms + ms)
            if span.known < known:
                span.known = known
                span.dirty = True
        # Also the span of a moment: the first look covers no time.
        here = self._span(int(wall) // SPAN_S * SPAN_S)
        here.known = max(here.known, known)

    def _take(self, piece: _Piece, to_wall: float) -> None:
        counters = _unpack(piece.now)
        counted: Counted = {}
        if piece.was != piece.now:
            was = _unpack(piece.was) if piece.was else _NOTHING
            delta = difference(was, counters, cut=piece.cut)
            counted = counted_by(piece.name, delta)
            left_out = bool(delta.refused) and tenants_left_out(
                was, counters, was_cut=piece.cut, now_cut=piece.now_cut
            )
            self._tops.count(delta, piece.until + to_wall, tenants_left_out=left_out)
        listed = all_tenants_listed(counters)
        parts = _parts(max(piece.since, piece.until - KEPT_S), piece.until, to_wall)
        length_ms, before_ms = sum(ms for _, ms in parts), 0
        for at, ms in parts:
            span = self._span(at)
            self._add_part(span, counted, before_ms, before_ms + ms, length_ms)
            span.record(piece.name, local=piece.mode is not Mode.SHARED, began_before=before_ms > 0)
            before_ms += ms
            if not listed:
                span.floor = max(span.floor, 1)
            self._add_gauges(span, piece)
            span.dirty = True

    def _add_part(self, span: Span, counted: Counted, before: int, until: int, length: int) -> None:
        for thing, fields in counted.items():
            kept = span.counted.get(thing)
            if kept is None:
                if (span.chosen and thing[0] in (TENANT, RULE) and thing[1]) or not self._room(span, thing):
                    continue
                kept = span.counted[thing] = {}
            if before == 0 and until == length:
                # All of it: the usual case.
                for place, count in fields.items():
                    kept[place] = kept.get(place, 0) + count
                continue
            for place, count in fields.items():
                # Whole numbers whose sum over the parts is exactly the count.
                part = count * until // length - count * before // length
                if part:
                    kept[place] = kept.get(place, 0) + part

    def _room(self, span: Span, thing: Thing) -> bool:
        if thing[0] is POD:
            # The totals contain the others.
            if span.pods >= MAX_PODS:
                return False
            span.pods += 1
            return True
        most = MAX_CHOSEN if span.chosen else MAX_THINGS
        if len(span.counted) < most or thing == THE_FLEET:
            return True
        span.floor = max(span.floor, 1)
        return False

    def _add_gauges(self, span: Span, piece: _Piece) -> None:
        thing = pod_of(piece.name)
        if thing not in span.counted and not self._room(span, thing):
            return
        kept = span.counted.setdefault(thing, {})
        for place, value in piece.gauges.items():
            kept[place] = max(kept.get(place, 0), value)


def _gauges(beat: SyncRequest) -> dict[int, int]:
    load = beat.load
    if load is None:
        return {}
    found = {_PRESSURE: load.pressure, _IN_FLIGHT: load.in_flight}
    return found if load.cpu is None else found | {_CPU: load.cpu}


def _parts(began: float, ended: float, to_wall: float) -> list[tuple[int, int]]:
    """The spans between two monotonic times, and the milliseconds in each; at least one span."""
    start, end = round((began + to_wall) * 1000), round((ended + to_wall) * 1000)
    long = SPAN_S * 1000
    found = []
    at = start // long * long
    while at < end:
        ms = min(end, at + long) - max(start, at)
        if ms > 0:
            found.append((at // 1000, ms))
        at += long
    return found or [(start // long * SPAN_S, 1)]


def _choose(span: Span) -> None:
    """Keep the busiest tenants, their rules, and the busiest dependencies."""
    span.chosen = True
    span.heard_names, span.local_names = set(), set()
    _keep_busiest(span, TENANT, TOP_TENANTS)
    _keep_busiest(span, RULE, TOP_RULES)
    _keep_busiest(span, DEPENDENCY, TOP_DEPENDENCIES)


def _keep_busiest(span: Span, kind: object, most: int) -> None:
    asked = [
        (sum(fields.values()) if kind is DEPENDENCY else fields.get(0, 0), thing)
        for thing, fields in span.counted.items()
        if thing[0] is kind and thing[1]
    ]
    if len(asked) <= most:
        return
    asked.sort(key=lambda one: (-one[0], one[1][1:]))
    for _, thing in asked[most:]:
        del span.counted[thing]
    if kind is TENANT:
        span.floor = max(span.floor, asked[most][0])


def values(span: Span) -> dict[Thing, list[int | None]]:
    """The fields of everything in a span, in the order of its kind; ``None`` where nothing is measured."""
    found: dict[Thing, list[int | None]] = {}
    for thing, counted in span.counted.items():
        kind = thing[0]
        found[thing] = [
            counted.get(place, None if one.how is How.PEAK else 0) for place, one in enumerate(kind.fields)
        ]
    if span.heard:
        fleet = found.setdefault(THE_FLEET, [0] * FLEET.width)
        fleet[_PODS_LOCAL] = span.local
    return found
