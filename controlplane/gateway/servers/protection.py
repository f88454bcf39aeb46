"""The part of an answer that helps a pod to protect itself: caps of retries, and a lease to be unready."""

from collections.abc import Mapping

import msgspec

from controlplane.gateway.servers.control_log import ControlLog
from controlplane.gateway.servers.rates import Key
from controlplane.gateway.servers.retry_caps import RetryCaps
from controlplane.gateway.servers.server import KnownServer
from controlplane.gateway.servers.unready import UnreadyLeases
from fuseboard.contract.load import MAX_CALL_LOADS
from fuseboard.contract.sync import SyncRequest

_encode = msgspec.json.encode


class FleetProtection:
    """The decisions of one gateway for the pods of one environment."""

    def __init__(self, environment: str, now: float) -> None:
        self.log = ControlLog(environment)
        self.unready = UnreadyLeases(now, self.log)
        self.caps = RetryCaps(self.log)
        #: Dependencies with a part of the protection; ``None`` before the first heartbeat.
        self.protected: frozenset[str] | None = None

    def part(
        self,
        beat: SyncRequest,
        *,
        servers: Mapping[str, KnownServer],
        milli: Mapping[Key, int],
        factors: Mapping[str, int],
        protected: frozenset[str],
        retries_per_s: int,
        unready_percent: int,
        now: float,
    ) -> bytes:
        """``factors``: dependency -> the most attempts of the fleet, in percent of its first calls.

        ``protected`` are all dependencies with a part of the protection.
        """
        self.protected, self.caps.retries_per_s = protected, retries_per_s
        if beat.load is None and not beat.protection:
            return b""
        part = b""
        if factors and beat.protection:
            names = [call.dependency for call in beat.protection[:MAX_CALL_LOADS]]
            if caps := self.caps.of(names, factors, milli, now):
                part = b',"retry_caps":%b' % _encode(caps)
        known = servers.get(beat.server)
        if known is None or known.beat.boot != beat.boot:
            # Two processes with one name: only the one that is displayed may be unready.
            return part
        lease_ms = self.unready.lease_ms(beat, unready_percent, servers.values(), known.next_s, now)
        return part + b',"unready_ms":%d' % lease_ms if lease_ms else part
