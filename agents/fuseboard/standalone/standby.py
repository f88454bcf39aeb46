"""What a server decides by while Redis cannot be asked, and tells it afterwards."""

from collections.abc import Iterable
from dataclasses import dataclass

from fuseboard.breaker.fleet_breaker import Gate
from fuseboard.configuration.holder import Configuration
from fuseboard.contract.words import Mode
from fuseboard.standalone.drain import Drain
from fuseboard.standalone.local_limits import LocalLimits
from fuseboard.standalone.reserved_share import ReservedShare
from fuseboard.store.connection import Store
from fuseboard.store.health import StoreHealth


@dataclass(frozen=True, slots=True)
class Alone:
    #: This server's piece of what Redis never grants.
    share: ReservedShare
    limits: LocalLimits
    #: What was decided without Redis, on its way there.
    drain: Drain
    parts: "Parts"

    def mode_changed(self, mode: Mode, gates: Iterable[Gate]) -> None:
        if mode is Mode.LOCAL and self.limits.offline.changed:
            self.drain.noted()
        elif mode is Mode.SHARED:
            self.drain.begin(orphans=True)
        if mode is not Mode.LOCAL:
            self.parts.look(gates)


class Parts:
    """A Cluster without one of its nodes: breakers kept there go on alone, the others do not."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cut_off: set[str] = set()

    def look(self, gates: Iterable[Gate]) -> None:
        for gate in gates:
            if self._store.serves(gate.guard_keys[0]):
                self._cut_off.discard(gate.name)
            elif gate.name not in self._cut_off:
                self._cut_off.add(gate.name)
                gate.stand_alone()


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
    return Alone(share, limits, drain, Parts(store))
