"""Pods may be unready because of pressure: few of a service, so that the others can serve.

A pod asks in its heartbeat. It is granted a lease of 30 s, which its heartbeats renew. Each gateway
decides for the pods that it hears: the sum of parts rounded down is at most the part of the sum.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import nsmallest

from msgspec import Struct

from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.control_log import ControlLog
from controlplane.gateway.servers.server import KnownServer
from fuseboard.contract.sync import SyncRequest

LEASE_S = 30.0
#: Length of a lease in heartbeats, where these are so far apart that it would end before it is renewed.
LEASE_BEATS = 3
LONGEST_LEASE_S = 600.0
#: In a smaller service, each pod that serves matters more than one that is slow.
FEWEST_PODS = 4

_COUNT_EVERY_S = 1.0
#: How often the pods of a service are put in order within a second: 10,000 of them take about 6 ms.
_RANKS_PER_S = 10


class _Asking(Struct, gc=False):
    #: When it began to ask, when it was heard last, and until when it may be unready; monotonic.
    since: float
    seen: float
    until: float = 0.0
    #: How long a lease lasts: longer where heartbeats are far apart.
    lease_s: float = LEASE_S
    #: Whether the log has a refusal since it began to ask, or since its lease ended.
    refused: bool = False


class _Service:
    """The pods of one service that ask. Who comes first is worked out seldom, because thousands may ask."""

    __slots__ = ("_first", "_most", "_ranked", "_stale", "_taken", "asking")

    def __init__(self) -> None:
        self.asking: dict[str, _Asking] = {}
        #: Pods that may have a lease. An empty dict takes a third of an empty set.
        self._first: dict[str, None] = {}
        #: Places that are taken until the next ``rank``, also by leases of pods that are not first.
        self._taken = 0
        self._most = 0
        #: Whether a pod gave its place back, or has a lease of another gateway; and ranks of this second.
        self._stale = False
        self._ranked = 0

    def begin_second(self, most: int, now: float) -> None:
        self._ranked = 0
        # Each pod can name a service of its own: 50,000 services without a place are not put in order.
        if most or self._most or self._taken:
            self._rank(most, now)

    def comes_first(self, name: str, most: int, now: float) -> bool:
        if most != self._most or (self._stale and self._ranked < _RANKS_PER_S):
            self._rank(most, now)
        if name not in self._first and self._taken < most and self.asking[name].until <= now:
            self._first[name] = None
            self._taken += 1
        return name in self._first

    def note_lease(self) -> None:
        """A pod has a lease of another gateway."""
        self._taken += 1
        self._stale = True

    def forget(self, name: str) -> bool:
        self._stale = self._stale or name in self._first
        return self.asking.pop(name, None) is not None

    def _rank(self, most: int, now: float) -> None:
        """Order the pods: those with a lease come first, then those that asked for longest."""

        def place(item: tuple[str, _Asking]) -> tuple[bool, float, str]:
            return item[1].until <= now, item[1].since, item[0]

        self._first = dict.fromkeys([name for name, _ in nsmallest(most, self.asking.items(), key=place)])
        leases = sum(one.until > now and name not in self._first for name, one in self.asking.items())
        self._taken = len(self._first) + leases
        self._most, self._stale, self._ranked = most, False, self._ranked + 1


class UnreadyLeases:
    """The leases of one environment. Nothing of a pod is kept for longer than a lease after its last word."""

    def __init__(self, begun: float, log: ControlLog) -> None:
        self._log = log
        #: Leases of another process, or of this one before it restarted, have ended or were reported.
        self._from = begun + LEASE_S
        self._by_service: dict[str, _Service] = {}
        self._pods: Counter[str] = Counter()
        self._counted = float("-inf")
        self.granted = 0
        self.refused = 0

    def held(self, service: str, now: float) -> int:
        """Pods of a service that have a lease."""
        known = self._by_service.get(service)
        return 0 if known is None else sum(asking.until > now for asking in known.asking.values())

    def lease_ms(
        self, beat: SyncRequest, percent: int, servers: Iterable[KnownServer], next_s: float, now: float
    ) -> int:
        """Milliseconds during which this pod may be unready; 0 for not.

        ``percent`` is the part of the service; ``next_s`` the time to the pod's next heartbeat.
        """
        load = beat.load
        if load is None or beat.leaving or not (load.asks_unready or load.unready):
            self._forget(beat.service, beat.server)
            return 0
        self._count(servers, percent, now)
        most = self.most(beat.service, percent)
        service = self._by_service.setdefault(beat.service, _Service())
        asking = service.asking.get(beat.server)
        if asking is None:
            asking = service.asking[beat.server] = _Asking(since=now, seen=now)
        asking.seen = now
        asking.lease_s = min(LONGEST_LEASE_S, max(LEASE_S, LEASE_BEATS * next_s))
        if load.unready and not asking.until:
            # Another gateway granted it: it counts here from now on.
            asking.until = now + asking.lease_s
            service.note_lease()
        if not load.asks_unready:
            # It gives the lease back when it has this answer, and counts until it reports that.
            return 0
        comes_first = service.comes_first(beat.server, most, now)
        if not comes_first or (now < self._from and asking.until <= now):
            self.refused += asking.until <= now
            self._log_refusal(asking, beat, percent, now)
            return 0
        if asking.until <= now:
            self.granted += 1
            self._log.write(
                "fleet.unready_granted",
                now,
                service=beat.service,
                server=beat.server,
                cause=load.cause,
                pods=self._pods[beat.service],
                most=most,
            )
        asking.until, asking.refused = now + asking.lease_s, False
        return int(asking.lease_s * 1000)

    def _log_refusal(self, asking: _Asking, beat: SyncRequest, percent: int, now: float) -> None:
        if asking.refused:
            return
        asking.refused = True
        self._log.write(
            "fleet.unready_refused",
            now,
            service=beat.service,
            server=beat.server,
            cause=beat.load.cause if beat.load is not None else "",
            pods=self._pods[beat.service],
            most=self.most(beat.service, percent),
            asking=len(self._by_service[beat.service].asking),
        )

    def most(self, service: str, percent: int) -> int:
        """How many pods of a service may be unready at once."""
        pods = self._pods[service]
        return 0 if pods < FEWEST_PODS else pods * percent // 100

    def _count(self, servers: Iterable[KnownServer], percent: int, now: float) -> None:
        if now - self._counted < _COUNT_EVERY_S:
            return
        self._counted = now
        # A pod that never counted a request serves nothing, and can be invented.
        self._pods = Counter(
            server.beat.service
            for server in servers
            if server.state is ServerState.ONLINE and server.has_asked
        )
        self._forget_silent(now)
        for name, service in self._by_service.items():
            service.begin_second(self.most(name, percent), now)

    def forget_silent(self, now: float) -> None:
        """Forget pods that asked, and were not heard for the time of a lease."""
        self._forget_silent(now)
        if not self._by_service:
            # The next pod that asks has the services counted again.
            self._pods, self._counted = Counter(), float("-inf")

    def _forget_silent(self, now: float) -> None:
        for name, service in list(self._by_service.items()):
            for pod, asking in list(service.asking.items()):
                if now - asking.seen > asking.lease_s and asking.until <= now:
                    self._forget(name, pod)

    def _forget(self, service: str, name: str) -> None:
        known = self._by_service.get(service)
        if known is not None and known.forget(name) and not known.asking:
            del self._by_service[service]
