"""The breakers of this pod, and the overrides that apply to them."""

from collections.abc import Callable, Iterable
from time import monotonic

from fuseboard.batching.fleet_leases import Leases
from fuseboard.batching.kept_demands import KeptDemands
from fuseboard.batching.settlements import Settlements
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.breaker.reports import Reports
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.policy import Dependency
from fuseboard.contract.words import BreakerState, Mode, OverrideMode
from fuseboard.reporting.counters import Counters
from fuseboard.store.store import Store


class PodBreakers(dict[str, FleetBreaker]):
    """Dependency -> its breaker. ``breakers[name]`` makes one that the pod has not used yet.

    A dependency that is not registered has the default policy.
    """

    def __init__(
        self,
        *,
        environment: str,
        server: str,
        configuration: Configuration,
        counters: Counters,
        settlements: Settlements,
        leases: Leases,
        kept: KeptDemands,
        reports: Reports,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__()
        self._environment = environment
        self._server = server
        self._configuration = configuration
        self._counters = counters
        self._settlements = settlements
        self._leases = leases
        self._kept = kept
        self._reports = reports
        self._on_change = on_change

    def __missing__(self, name: str) -> FleetBreaker:
        # One for all: a thread that asks for ``views`` may make it in the same moment.
        return self.setdefault(name, self.new(name, self._on_change))

    def new(self, name: str, on_change: Callable[[], None], *, logs: bool = True) -> FleetBreaker:
        """A new breaker, which is not among these."""
        return FleetBreaker(
            environment=self._environment,
            server=self._server,
            dependency=self._configuration.snapshot.dependency(name) or Dependency(name=name),
            on_change=on_change,
            report_soon=lambda breaker: self._reports.add(breaker, urgent=True),
            counters=self._counters,
            settlements=self._settlements,
            leases=self._leases,
            # The demands of one that is not among these go with it.
            kept=self._kept if logs else KeptDemands(),
            logs=logs,
        )

    def every(self) -> Iterable[FleetBreaker]:
        """The breakers of the configuration, used or not, and those that only this pod has."""
        for dependency in self._configuration.snapshot.policy.dependencies:
            self[dependency.name]  # makes it
        return tuple(self.values())

    def refresh(self) -> None:
        """Ask Redis about each breaker that may have closed since this pod last heard of it.

        Every pod hears that a breaker opens. Only a pod that calls hears that it closes. A report without
        outcomes changes nothing, and its reply has the state.
        """
        for breaker in tuple(self.values()):
            is_over = breaker.state is not BreakerState.CLOSED and breaker.until <= monotonic()
            if is_over and not breaker.cut_off:
                breaker.pending[breaker.generation]  # an empty report
                self._reports.add(breaker, urgent=True)

    def override(self, dependency: str) -> OverrideMode | None:
        """The override of a dependency that applies now."""
        breaker = self.get(dependency)
        if breaker is not None and not breaker.overridden:
            return None  # without reading the clock
        override = self._configuration.override_in_force(dependency)
        return override.mode if override is not None else None

    def adopt(self, snapshot: Snapshot) -> None:
        """Decide by a newer configuration from now on."""
        for breaker in tuple(self.values()):
            breaker.adopt(snapshot.dependency(breaker.name) or Dependency(name=breaker.name))

    def override_ended(self, dependency: str) -> None:
        """An override in the configuration was ended in Redis: decide as if it had never existed."""
        breaker = self.get(dependency)
        if breaker is not None:
            breaker.override_ended()

    def mode_changed(self, mode: Mode, store: Store) -> None:
        """Redis is lost or back, or in a Cluster one of its nodes is."""
        for breaker in tuple(self.values()):
            if mode is Mode.LOCAL:
                breaker.redis_lost()
            else:
                breaker.node_changed(served=store.serves(breaker.guard_keys[0]))
