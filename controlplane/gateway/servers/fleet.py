"""The pods of one environment: which are present, since when, and what they count."""

from collections.abc import Iterable
from typing import NamedTuple

import structlog

from controlplane.fleet.live import SPENDING_FOR
from controlplane.fleet.models import ServerState
from controlplane.gateway.clock import Clock
from controlplane.gateway.servers.fleet_bounds import Kept, RefusedNames, Room, cut_to_bounds
from controlplane.gateway.servers.fleet_size import FleetSize
from controlplane.gateway.servers.fleet_sums import FleetSums
from controlplane.gateway.servers.leased_keys import LeasedKeys
from controlplane.gateway.servers.liveness import ASLEEP_S, FROZEN_AT_MOST_S, SelfPreservation
from controlplane.gateway.servers.protection import FleetProtection
from controlplane.gateway.servers.server import KnownServer
from fuseboard.contract.sync import SyncRequest

#: More pods than this in one environment are a mistake or an attack.
MAX_SERVERS = 50_000

#: Pods with news for Postgres, with those that were dropped.
MAX_WAITING = 2 * MAX_SERVERS

#: A pod that left is remembered this long, so that an overtaken heartbeat does not revive it.
TOMBSTONE_S = 60.0

_SPENDING_S = SPENDING_FOR.total_seconds()

_SILENT = (ServerState.UNKNOWN, ServerState.OFFLINE)

log = structlog.get_logger(__name__)


class FleetFull(Exception):
    """There is no room for another pod."""


class Absorbed(NamedTuple):
    """The outcome of a heartbeat."""

    #: Whether Postgres gets the news at once.
    urgent: bool
    #: Whether the heartbeat is about the past. It shows at most that another process has this name.
    stale: bool = False


class Fleet:
    """Absorbs heartbeats and, once a second, silence. ``dirty`` holds what Postgres does not have yet."""

    def __init__(self, environment: str, clock: Clock, *, beat_ms: int, beats_per_s: int) -> None:
        self.environment = environment
        self.servers: dict[str, KnownServer] = {}
        self.dirty: dict[str, KnownServer] = {}
        #: The part of ``dirty`` that is written at once.
        self.urgent: dict[str, KnownServer] = {}
        self.size = FleetSize(clock, beat_ms=beat_ms, beats_per_s=beats_per_s)
        self.sums, self.kept = FleetSums(), Kept()
        self.leased = LeasedKeys(clock)
        self.preservation = SelfPreservation()
        self.protection = FleetProtection(environment, clock.monotonic())
        self.stale_beats = 0
        #: Pods that report a revision that Postgres never made, as of the last look.
        self.unknown_revisions: frozenset[str] = frozenset()
        self._clock = clock
        self.refused_names = RefusedNames()
        self._room = Room()
        #: Pods that were dropped for a new one.
        self.dropped = 0
        #: Primaries of Redis, and how many of them give no answer.
        self.primaries = self.primaries_down = 0
        #: Alerts that this gateway sent by itself, and that Postgres does not have.
        self.unhanded = 0
        self._swept = clock.monotonic()
        #: Monotonic time at which this process went on after a pause.
        self._woke: float | None = None

    @property
    def woke_wall(self) -> float | None:
        """Wall time at which this process went on after a pause; ``None`` if it never paused."""
        now = self._clock.monotonic()
        # The sweep that notices it can still be to come.
        woke = now if now - self._swept > ASLEEP_S else self._woke
        return None if woke is None else self._wall_of(woke)

    def absorb(
        self,
        beat: SyncRequest,
        *,
        now: float | None = None,
        wall: float | None = None,
        token: str = "",
        address: str = "",
        counted: bool = True,
    ) -> Absorbed:
        """Take in one heartbeat of a token.

        Without ``counted``, requests of another process of that name do not count. Raises ``FleetFull``.
        """
        now = self._clock.monotonic() if now is None else now
        wall = self._clock.wall() if wall is None else wall
        name, next_s = beat.server, self.size.next_ms / 1000
        server = self.servers.get(name)
        if server is None:
            server, news = self._add(beat, token, now=now, wall=wall, next_s=next_s), True
        elif server.is_stale(beat, wall=wall):
            self.stale_beats += 1
            news = self._doubt(server, beat, now, counted=counted, most=self.kept.bounds(token).rivals)
            if not server.may_return(beat):
                return Absorbed(news, stale=True)
        else:
            news = False
        before, last, bounds = server.spending, server.beat, self.kept.bounds(token)
        beat, packed, was_cut = cut_to_bounds(beat, bounds)
        self.sums.record(server, beat, packed, now=now, wall=wall)
        news |= server.take(
            *(beat, packed),
            now=now,
            wall=wall,
            next_s=next_s,
            call_bytes=bounds.call_bytes,
            events=self.sums.primitive_events,
        )
        server.token, server.address = token, address
        self.kept.cut_beats += was_cut or server.calls.cut
        self.protection.log.note_load(last, beat, now)
        self._room.leave(server)
        self.kept.note(server, token)
        self._room.take(server)
        if server.spending > before and not beat.leaving:
            self.size.add(spending=server.spending - before)
            # Other gateways count it too, from its row.
            news = True
        self.dirty[name] = server
        if news:
            self.urgent[name] = server
        return Absorbed(news)

    def wait_s(self, name: str, now: float) -> float:
        """Seconds until this pod may send a heartbeat again; 0.0 if it may now."""
        server = self.servers.get(name)
        return 0.0 if server is None else server.allowance.take(now)

    def adopt(self, server: KnownServer) -> None:
        """Take over a pod from Postgres. Its time begins now, its counters with its next heartbeat."""
        name = server.beat.server
        if name not in self.servers and len(self.servers) < MAX_SERVERS:
            # Dirty, so that its row gets the name of this gateway.
            self.servers[name] = self.dirty[name] = server
            server.may_have_row = True
            self._room.take(server)
            self.size.add(here=1, spending=server.spending)

    def overdue(self, now: float) -> list[KnownServer]:
        """Pods whose next heartbeat is overdue."""
        return [
            server
            for server in self.servers.values()
            if now - server.seen > server.next_s and server.state is not ServerState.GONE
        ]

    def hand_over(self, name: str) -> None:
        """Another gateway hears this pod now, so its silence here means nothing."""
        server = self._remove(name)
        server.handed_over = True
        self.sums.forget(server)
        self.dirty.pop(name, None)
        self.urgent.pop(name, None)

    def forget(self, name: str, *, before: float) -> bool:
        """Remove a pod on an operator's order, unless it sent a heartbeat after ``before`` (wall time).

        Returns whether it was there.
        """
        server = self.servers.get(name)
        if server is None or server.seen_wall > before:
            return False
        self.hand_over(name)
        return True

    def lift_freeze(self, *, before: float) -> bool:
        """End the freeze on an operator's order. A freeze that began after ``before`` (wall time) continues.

        Returns whether there was one.
        """
        preservation = self.preservation
        since = preservation.frozen_since
        if since is None or self._wall_of(since) > before:
            return False
        preservation.lift()
        log.warning("fleet.freeze_lifted", environment=self.environment, silent=preservation.silent)
        return True

    def frozen_until(self) -> float | None:
        """Wall time at which the freeze ends if the pods stay silent; ``None`` without a freeze."""
        since = self.preservation.frozen_since
        return None if since is None else self._wall_of(since) + FROZEN_AT_MOST_S

    def _wall_of(self, monotonic: float) -> float:
        return self._clock.wall() - (self._clock.monotonic() - monotonic)

    def divisor_of(self, name: str, boot: str) -> int:
        """By how much this process divides a limit without Redis."""
        server = self.servers.get(name)
        missing = None if server is None else server.missing_for(boot, self._clock.monotonic())
        return self.size.divisor(missing)

    def sweep(self) -> list[KnownServer]:
        """Update states after silence. Returns the pods whose state changed."""
        now = self._clock.monotonic()
        if now - self._swept > ASLEEP_S:
            self._restart_leases(now)
        self._swept = now
        calm, others = self._part(now)
        in_time, wanted = _silent(others, now)
        self._judge(wanted, calm + in_time, now)
        changed = [server for server, state in wanted if self._move(server, state)]
        for server in changed:
            self.dirty[server.beat.server] = self.urgent[server.beat.server] = server
        self._forget_the_gone(others, now)
        self.protection.unready.forget_silent(now)
        here, spending = self._present(others, now)
        self.size.note(calm + here, calm + spending)
        return changed

    def refresh_rates(self, servers: Iterable[KnownServer]) -> None:
        """Update the totals with the newest counters of these pods."""
        for server in servers:
            if not server.handed_over and self.sums.refresh(server, full=self.kept.is_full(server.kept_for)):
                self.kept.note(server, server.kept_for)

    def uncounted(self) -> int:
        """Pods that are present but in no rate yet: heard less than twice since this process started."""
        there = (ServerState.ONLINE, ServerState.LATE)
        return sum(1 for server in self.servers.values() if server.state in there and not server.track.counts)

    def new_pods_refused(self) -> int:
        """Heartbeats refused within the last minute because their names were new."""
        return self.refused_names.lately(self._clock.monotonic())

    def count(self, state: ServerState) -> int:
        return sum(1 for server in self.servers.values() if server.state is state)

    def _add(self, beat: SyncRequest, token: str, *, now: float, wall: float, next_s: float) -> KnownServer:
        if len(self.servers) >= MAX_SERVERS:
            self._make_room(token, wall)
        server = KnownServer(
            beat=beat, seen=now, seen_wall=wall, next_s=next_s, started_wall=wall - beat.up_ms / 1000
        )
        self.servers[beat.server] = server
        # A process that only leaves spends nothing: `fuseboard doctor`, or a pod without a row.
        if not beat.leaving:
            self.size.add(here=1)
        return server

    def _make_room(self, token: str, wall: float) -> None:
        """Drop a pod for a new one of this token. Raises ``FleetFull``."""
        name = self._room.to_drop(token)
        if name is None:
            raise FleetFull
        if not self.dropped:
            log.warning("fleet.full", environment=self.environment, pods=len(self.servers), dropped=name)
        self.dropped += 1
        server = self.servers[name]
        self.hand_over(name)
        # Its row must not stay, as if it were online. Without Postgres, such pods pile up: little is kept of
        # each, and nothing of those that have no row.
        if server.may_have_row and len(self.dirty) < MAX_WAITING:
            server.strip(left_wall=wall)
            self.dirty[name] = self.urgent[name] = server

    def _remove(self, name: str) -> KnownServer:
        server = self.servers.pop(name)
        self._room.leave(server)
        self.kept.forget(server)
        return server

    def _part(self, now: float) -> tuple[int, list[KnownServer]]:
        """How many were heard in time, spend, and own their names alone; and the others.

        Most are among the first. One look at each keeps a sweep of 10,000 pods short.
        """
        others = [
            server
            for server in self.servers.values()
            if now - server.seen > server.next_s
            or server.state is not ServerState.ONLINE
            or server.rivals_heard is not None
            or not server.has_asked
        ]
        return len(self.servers) - len(others), others

    def _judge(self, wanted: list[tuple[KnownServer, ServerState]], in_time: int, now: float) -> None:
        was_frozen = self.preservation.frozen
        # Pods that never counted a request can be invented: their silence must not hide that of real ones.
        present = [(s, state) for s, state in wanted if s.has_asked and s.state is not ServerState.OFFLINE]
        expected = in_time + len(present)
        silent = [server for server, state in present if state not in (ServerState.ONLINE, ServerState.LATE)]
        self.preservation.observe(
            now=now,
            newly_silent=sum(1 for server in silent if server.state not in _SILENT),
            silent=len(silent),
            expected=expected,
        )
        if self.preservation.frozen != was_frozen:
            log.warning(
                "fleet_expiry_frozen" if self.preservation.frozen else "fleet_expiry_resumed",
                environment=self.environment,
                silent=len(silent),
                expected=expected,
            )

    def _move(self, server: KnownServer, state: ServerState) -> bool:
        if self.preservation.frozen and state in (ServerState.OFFLINE, ServerState.GONE):
            state = ServerState.UNKNOWN if server.state is not ServerState.OFFLINE else server.state
        if state is server.state:
            return False
        server.state = state
        if state is ServerState.GONE:
            server.left_wall = self._clock.wall()
        return True

    def _forget_the_gone(self, others: list[KnownServer], now: float) -> None:
        for server in others:
            name = server.beat.server
            if (
                server.state is ServerState.GONE
                and name not in self.dirty
                and now - server.seen > TOMBSTONE_S
            ):
                self._remove(name)

    def _restart_leases(self, now: float) -> None:
        """While this process did not run, nothing received the heartbeats of its pods."""
        log.warning("gateway_was_asleep", environment=self.environment, for_s=round(now - self._swept, 1))
        asleep, self._woke = now - self._swept, now
        for server in self.servers.values():
            server.seen = min(now, server.seen + asleep)

    def _doubt(self, server: KnownServer, beat: SyncRequest, now: float, *, counted: bool, most: int) -> bool:
        """Handle a stale heartbeat. Returns whether it shows that two processes have one name."""
        if beat.boot == server.beat.boot:
            return False
        rivals, spending = server.rivals, server.spending
        server.record_rival(beat, now, counted=counted, most=most)
        self.kept.note(server, server.kept_for)
        if (server.rivals, server.spending) == (rivals, spending):
            return False
        if server.spending > spending:
            self.size.add(spending=server.spending - spending)
        self.dirty[beat.server] = self.urgent[beat.server] = server
        if server.rivals != rivals:
            log.warning(
                "fleet.duplicate_name", environment=self.environment, server=beat.server, others=server.rivals
            )
        return True

    def _present(self, others: list[KnownServer], now: float) -> tuple[int, int]:
        """How many of these processes may send heartbeats, and how many may be spending."""
        here = spending = 0
        for server in others:
            if server.rivals_heard is not None:
                before = server.rivals, server.spending
                server.count_rivals(now)
                if (server.rivals, server.spending) != before:
                    self.dirty[server.beat.server] = server
            if server.state is not ServerState.GONE and now - server.seen <= _SPENDING_S:
                here += 1 + server.rivals
                spending += server.spending
        return here, spending


def _silent(servers: list[KnownServer], now: float) -> tuple[int, list[tuple[KnownServer, ServerState]]]:
    """How many spending ones are heard in time, and the others with the state that silence leads to."""
    in_time, silent = 0, []
    # `next_s` is sooner than any state changes.
    for server in servers:
        if server.state is ServerState.ONLINE and now - server.seen <= server.next_s:
            in_time += server.has_asked
        elif server.state is not ServerState.GONE:
            silent.append((server, server.state_at(now)))
    return in_time, silent
