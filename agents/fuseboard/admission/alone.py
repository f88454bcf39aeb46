"""What a server decides by while Redis cannot be asked, and tells it afterwards."""

from dataclasses import dataclass

from fuseboard.admission.drain import Drain
from fuseboard.admission.local_limits import LocalLimits
from fuseboard.admission.reserved import ReservedShare
from fuseboard.configuration.holder import Configuration
from fuseboard.store.connection import Store
from fuseboard.store.health import StoreHealth


@dataclass(frozen=True, slots=True)
class Alone:
    #: This server's piece of what Redis never grants.
    share: ReservedShare
    limits: LocalLimits
    #: What was decided without Redis, on its way there.
    drain: Drain


def stand_by(*, configuration: Configuration, store: Store, health: StoreHealth) -> Alone:
    """Everything for deciding alone, with its hooks in ``health``."""
    share, clock = ReservedShare(), configuration.clock
    limits = LocalLimits(
        lambda: configuration.live_servers,
        share=share,
        fleet_offset_s=lambda: clock.offset_us / 1_000_000 if clock.learned else None,
    )
    drain = Drain(store=store, health=health, local=limits)
    limits.offline.on_change = drain.noted
    health.before_ramp = drain.before_ramp
    return Alone(share, limits, drain)
