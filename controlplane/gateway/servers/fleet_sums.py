"""Sums over the pods of one environment: rates now, series, hours of tenants, and calls that failed."""

from collections import Counter

from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.descriptor_figures import DescriptorFigures
from controlplane.gateway.servers.failed_calls import FailedCalls
from controlplane.gateway.servers.primitive_track import Events
from controlplane.gateway.servers.rates import NOTHING, Totals
from controlplane.gateway.servers.series_spans import FleetSeries
from controlplane.gateway.servers.server import KnownServer, contribution_of
from controlplane.gateway.servers.tenant_hours import TenantHours
from controlplane.gateway.servers.top_refusals import TopRefusals
from controlplane.gateway.servers.usage_parts import UsageParts
from fuseboard.contract.sync import SyncRequest


class FleetSums:
    """The sums over pods.

    ``record`` and ``refresh`` keep series, failed calls and totals. ``GatewayApp`` adds to the hours of
    tenants, the usage of models, the descriptors of Envoy and the samples of the top lists, and
    ``KnownServer.take`` to the events of locks.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.tops = TopRefusals()
        self.series, self.failed_calls = FleetSeries(self.tops), FailedCalls()
        self.tenant_hours = TenantHours()
        self.descriptors = DescriptorFigures()
        #: The usage of language models.
        self.usage = UsageParts()
        #: Outcomes of locks, and of work that must not be done twice, since this process started.
        self.primitive_events: Events = Counter()

    def record(
        self, server: KnownServer, beat: SyncRequest, packed: bytes, *, now: float, wall: float
    ) -> None:
        """Note a heartbeat that ``server`` has not taken yet; ``packed`` are its counters."""
        self.series.record(beat, packed, now, calls=server.calls)
        self.failed_calls.record(server.beat, beat, wall, first=server.adopted or server.track.empty)

    def refresh(self, server: KnownServer, *, full: bool) -> bool:
        """Put the newest rates of this pod into the totals. Returns whether it must be noted as kept again.

        With ``full``, a name that no pod counts for so far is left out.
        """
        heard = server.state in (ServerState.ONLINE, ServerState.LATE)
        rates = contribution_of(server) if heard else NOTHING
        if full:
            # Another count for a name that is known takes little memory. A new name takes much.
            rates = self.totals.known(rates)
        own_names, before = self.totals.replace(server.rates, rates), server.own_names
        server.rates, server.own_names = rates, own_names
        return own_names != before and server.kept > 0

    def forget(self, server: KnownServer) -> None:
        """Take the rates of this pod out of the totals."""
        self.totals.replace(server.rates, NOTHING)
        # It can be in a batch that is being written, so that its rates are refreshed once more.
        server.rates = NOTHING
