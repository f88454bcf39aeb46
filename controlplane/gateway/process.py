"""Puts the parts of the gateway together and keeps them running."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import structlog
from django.conf import settings as django_settings
from msgspec import DecodeError

from controlplane.breakers.override_in_gateways import HandedOverride
from controlplane.gateway.answers.configuration import Configuration, Loaded, Refused
from controlplane.gateway.answers.overrides import HandedOverrides
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts
from controlplane.gateway.emergency.probe import RedisProbe
from controlplane.gateway.emergency.watch import Emergency
from controlplane.gateway.emergency.watchdog import Watchdog
from controlplane.gateway.postgres.adoption import known_server_of
from controlplane.gateway.postgres.coordination import Coordination
from controlplane.gateway.postgres.flush import Flusher
from controlplane.gateway.postgres.loading import Reading
from controlplane.gateway.postgres.orders import Orders
from controlplane.gateway.postgres.peers import Peers
from controlplane.gateway.postgres.refresh import Refresher
from controlplane.gateway.postgres.series_frames import SeriesWriter
from controlplane.gateway.postgres.tenant_hours import HoursWriter
from controlplane.gateway.postgres.usage_rows import UsageWriter
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.known_names import KnownNames
from controlplane.gateway.servers.status_answers import StatusAnswers
from controlplane.gateway.settings import GatewaySettings
from controlplane.gateway.wire import problems
from controlplane.gateway.wire.heartbeat_names import HeartbeatNames
from controlplane.gateway.wire.tokens import TokenBook
from controlplane.shutdown import stop_tasks
from fuseboard.contract.limits import PolicyError

SWEEP_S = 1.0

#: A collection of the oldest generation stops every heartbeat: 10,000 connections had a p99 of 225 ms
#: with Python's thresholds, and of 15 ms with these and a frozen start.
GC_THRESHOLDS = (50_000, 20, 50)

#: Between two collections of the youngest generation. Each heartbeat replaces the last one, so as many
#: objects are freed as created, and Python would collect only when the fleet grows:
#: 100,000 objects at once, for 40 ms.
COLLECT_S = 0.1

#: Before a loop that failed with a bug starts again.
RESTART_S = 1.0

#: Between a SIGTERM and the last batch.
STOP_S = 2.0
#: How long the background work may take to end before that.
CANCEL_S = 1.0

log = structlog.get_logger(__name__)


class Gateway:
    """The state of one gateway process. Everything runs on one event loop."""

    def __init__(self, settings: GatewaySettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or Clock()
        self.configurations: dict[str, Configuration] = {}
        self.fleets: dict[str, Fleet] = {}
        self.tokens = TokenBook(
            rate_per_s=settings.token_rate_per_s,
            burst=settings.token_burst,
            new_names_per_min=settings.new_pods_per_min,
        )
        self.known_names = KnownNames()
        self.counts = Counts()
        self.names = HeartbeatNames()
        self.handed_overrides = HandedOverrides(self.clock)
        self.status_answers = StatusAnswers(self.clock, gateway=settings.gateway)
        #: Whether a configuration was ever read. Once true, it stays true.
        self.ready = False
        self.coordination = Coordination(
            self.clock,
            lambda: [(name, held.tuning) for name, held in self.configurations.items()],
            Peers(self.fleets, self.known_names, self.clock, gateway=settings.gateway),
            Orders(self.fleets, self.clock),
            self.counts,
        )
        self._read_at = self.clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._flusher: Flusher | None = None
        self._refresher: Refresher | None = None
        self._series: SeriesWriter | None = None
        self._hours: HoursWriter | None = None
        self._usage: UsageWriter | None = None
        self.emergency: Emergency | None = None

    @property
    def configuration_age_s(self) -> float:
        return self.clock.monotonic() - self._read_at

    def fleet(self, environment: str) -> Fleet:
        fleet = self.fleets.get(environment)
        if fleet is None:
            fleet = self.fleets[environment] = Fleet(
                environment, self.clock, beat_ms=self.settings.beat_ms, beats_per_s=self.settings.beats_per_s
            )
        return fleet

    def hurry(self) -> None:
        """Write urgent changes at once."""
        if self._flusher is not None:
            self._flusher.hurry()

    def hold(self, hold: HandedOverride) -> None:
        """Hold a breaker open from now on, and write it to Postgres when that is back. Raises ``Problem``."""
        configuration = self.configurations.get(hold.environment)
        if configuration is None:
            raise problems.not_ready(f"Nothing is published for environment {hold.environment!r} yet.")
        self.handed_overrides.take(hold, configuration)
        self.handed_overrides.serve([configuration])
        log.warning("gateway.holds", environment=hold.environment, dependency=hold.dependency, id=hold.id)
        if self._refresher is not None:
            self._refresher.hurry()

    def start(self) -> None:
        """Start the background work. Does nothing the second time."""
        if self._tasks:
            return
        self._flusher = Flusher(
            self.fleets, self.settings, self.counts, self.clock, configured=lambda: self.configurations
        )
        self._series = SeriesWriter(self.fleets, self.settings, self.counts, self.clock)
        self._hours = HoursWriter(self.fleets, self._series.numbers, self.settings, self.counts, self.clock)
        self._usage = UsageWriter(self.fleets, self.settings, self.counts, self.clock)
        self._refresher = Refresher(
            heads=lambda: {name: held.head for name, held in self.configurations.items()},
            take=self.take,
            failed=self._reload_failed,
            holds=lambda: self.handed_overrides.waiting,
            every_s=self.settings.reload_s,
            gateway=self.settings.gateway,
        )
        self._tasks = [
            self._keep(RedisProbe(self.fleets).run, "probe"),
            self._keep(self._refresher.run, "refresh"),
            self._keep(self._refresher.listen, "listen"),
            self._keep(self._sweep, "sweep"),
            self._keep(self._flusher.run, "flush"),
            self._keep(self._series.run, "series"),
            self._keep(self._hours.run, "hours"),
            self._keep(self._usage.run, "usage"),
            self._keep(self.coordination.run, "agree"),
        ]
        if self.settings.oncall_dir:
            self.emergency = Emergency(self.fleets, self.settings, self.clock, self.counts)
            self._tasks += [
                self._keep(self.emergency.read, "plans"),
                self._keep(self.emergency.watch, "oncall"),
            ]
            if django_settings.WATCHDOG_URL:
                watchdog = Watchdog(self.emergency, self.counts)
                self._tasks.append(self._keep(watchdog.run, "watchdog"))
        if self.settings.alone:
            self._tasks.append(self._keep(_collect_young, "collect"))
        log.info("gateway.started", gateway=self.settings.gateway, beat_ms=self.settings.beat_ms)

    async def stop(self) -> None:
        """Write what is not written yet, for at most ``STOP_S``. Does nothing the second time."""
        if not (self._flusher and self._refresher and self._series and self._hours and self._usage):
            return
        await stop_tasks(*self._tasks, within_s=CANCEL_S)
        try:
            async with asyncio.timeout(STOP_S):
                await self._flusher.finish()
                await self._usage.write()
                await self._series.finish()
                await self._hours.write()
                await self._refresher.close()
                if self.emergency is not None:
                    await self.emergency.close()
        except TimeoutError:
            log.warning("gateway.stopped_early", gateway=self.settings.gateway)
        finally:
            # Also those of a part that had no time to finish.
            await self._flusher.disconnect()
            await self._series.disconnect()
            await self._usage.disconnect()
        self._tasks, self._flusher, self._refresher = [], None, None
        self._series = self._hours = self._usage = None
        log.info("gateway.stopped", gateway=self.settings.gateway)

    def take(self, reading: Reading) -> None:
        """Apply what was read from Postgres. A part with errors changes nothing."""
        self.tokens.replace(reading.tokens)
        self.known_names.add(reading.names, self.clock.monotonic())
        for environment, why in reading.unreadable.items():
            self._reload_failed()
            log.error("gateway.configuration_unreadable", environment=environment, error=why)
        for environment, loaded in reading.loaded.items():
            self._take_configuration(environment, loaded)
        if not reading.unreadable:
            # Only now: until the revision that contains them is served, memory alone holds them.
            self.handed_overrides.settle(reading.adopted)
        self.handed_overrides.serve(self.configurations.values())
        for server in reading.servers:
            self.fleet(server.environment).adopt(
                known_server_of(server, now=self.clock.monotonic(), wall=self.clock.wall())
            )
        self._read_at = self.clock.monotonic()
        if self.configurations and not self.ready:
            self.ready = True
            if self.settings.alone:
                tune_collector()

    def _take_configuration(self, environment: str, loaded: Loaded) -> None:
        configuration = self.configurations.get(environment) or Configuration(environment)
        head = loaded.head
        try:
            taken = configuration.take(loaded)
        except (Refused, DecodeError, PolicyError) as error:
            self._reload_failed()
            log.error("gateway.configuration_refused", environment=environment, error=str(error))
            return
        if taken:
            log.info(
                "gateway.configuration_taken",
                environment=environment,
                epoch=head.epoch,
                revision=head.revision,
                tenants=len(loaded.tenants),
            )
        self.configurations[environment] = configuration

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.handed_overrides.serve(self.configurations.values())
            for fleet in self.fleets.values():
                if fleet.sweep():
                    self.hurry()

    def _reload_failed(self) -> None:
        self.counts.reload_failures += 1

    def _keep(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(_for_ever(work, name), name=f"gateway-{name}")


async def _for_ever(work: Callable[[], Awaitable[None]], name: str) -> None:
    """A bug in one loop must not leave a gateway that only answers."""
    while True:
        try:
            await work()
        except Exception:
            log.critical("gateway.task_failed", task=name, exc_info=True)
        await asyncio.sleep(RESTART_S)


async def _collect_young() -> None:
    while True:
        await asyncio.sleep(COLLECT_S)
        gc.collect(0)


def tune_collector() -> None:
    """Exclude what the start created from every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
