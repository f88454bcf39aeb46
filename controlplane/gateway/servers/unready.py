"""Which pods may be unready because of pressure: few of a service, so that the others can serve.

A pod asks in its heartbeat. It is granted a lease of 30 s, which its heartbeats renew. Each gateway
decides for the pods that it hears: the sum of parts rounded down is at most the part of the sum.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.control_log import ControlLog
from controlplane.gateway.servers.server import KnownServer
from fuseboard.contract.sync import SyncRequest

LEASE_S = 30.0
#: In a smaller service, each pod that serves matters more than one that is slow.
FEWEST_PODS = 4

_COUNT_EVERY_S = 1.0


class _Asking(Struct, gc=False):
    #: When it began to ask, when it was heard last, and until when it may be unready; monotonic.
    since: float
    seen: float
    until: float = 0.0
    #: Whether the log has a refusal since it began to ask, or since its lease ended.
    refused: bool = False


class UnreadyLeases:
    """The leases of one environment. Nothing of a pod is kept for longer than a lease after its last word."""

    def __init__(self, begun: float, log: ControlLog) -> None:
        self._log = log
        #: Leases of another process, or of this one before it restarted, have ended or were reported.
        self._from = begun + LEASE_S
        self._by_service: dict[str, dict[str, _Asking]] = {}
        self._pods: Counter[str] = Counter()
        self._counted = float("-inf")
        self.granted = 0
        self.refused = 0

    def held(self, service: str, now: float) -> int:
        """Pods of a service that have a lease."""
        return sum(asking.until > now for asking in self._by_service.get(service, {}).values())

    def lease_ms(self, beat: SyncRequest, percent: int, servers: Iterable[KnownServer], now: float) -> int:
        """For how long this pod may be unready; 0 for not. ``percent`` is the part of the service."""
        load = beat.load
        if load is None or beat.leaving or not (load.asks_unready or load.unready):
            self._forget(beat.service, beat.server)
            return 0
        self._count(servers, now)
        asked = self._by_service.setdefault(beat.service, {})
        asking = asked.get(beat.server)
        if asking is None:
            asking = asked[beat.server] = _Asking(since=now, seen=now)
        asking.seen = now
        if load.unready and not asking.until:
            # Another gateway granted it: it counts here from now on.
            asking.until = now + LEASE_S
        if not load.asks_unready:
            # It gives the lease back when it has this answer, and counts until it reports that.
            return 0
        most = self.most(beat.service, percent)
        place = sum(_before(other, asking, name, beat.server, now) for name, other in asked.items())
        if place >= most or (now < self._from and asking.until <= now):
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
        asking.until, asking.refused = now + LEASE_S, False
        return int(LEASE_S * 1000)

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
            asking=len(self._by_service[beat.service]),
        )

    def most(self, service: str, percent: int) -> int:
        """How many pods of a service may be unready at once."""
        pods = self._pods[service]
        return 0 if pods < FEWEST_PODS else pods * percent // 100

    def _count(self, servers: Iterable[KnownServer], now: float) -> None:
        if now - self._counted < _COUNT_EVERY_S:
            return
        self._counted = now
        # A pod that never counted a request serves nothing, and can be invented.
        self._pods = Counter(
            server.beat.service
            for server in servers
            if server.state is ServerState.ONLINE and server.has_asked
        )
        for service, asked in list(self._by_service.items()):
            for name, asking in list(asked.items()):
                if now - asking.seen > LEASE_S and asking.until <= now:
                    self._forget(service, name)

    def _forget(self, service: str, name: str) -> None:
        asked = self._by_service.get(service)
        if asked is not None and asked.pop(name, None) is not None and not asked:
            del self._by_service[service]


def _before(other: _Asking, asking: _Asking, name: str, own: str, now: float) -> bool:
    """Whether another pod comes first: pods with a lease, then the one that asked for longest."""
    if name == own:
        return False
    return (other.until <= now, other.since, name) < (asking.until <= now, asking.since, own)
