"""One run of the agent, from ``start`` to ``stop``: the parts, and what flows between them.

::

    gateway <-> sync thread -> LoopPort -> Configuration <- Watch <-> Redis
                     |                          |
                    disk                    Admission <-> Redis
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import Any

from fuseboard.admission.call_pressure import CallShedding, GuardLoads
from fuseboard.admission.decisions import DecisionBuilder
from fuseboard.admission.inbound import Inbound
from fuseboard.calling.observer import Observer
from fuseboard.cancellation import stop_tasks, wait_for_event
from fuseboard.composition import compose_admission, compose_retries
from fuseboard.configuration.checked_config import (
    CheckedConfig,
    ConfigError,
    check_config,
    check_tenants,
)
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.disk import Disk
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.configuration.startup import DiskWriter, apply_bootstrap, apply_from_disk
from fuseboard.configuration.watch import Watch
from fuseboard.contract import keys
from fuseboard.contract.words import ConfigSource, Mode
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.heartbeat import Exchange, Gateway, PodState
from fuseboard.reporting.loop_port import LoopPort
from fuseboard.reporting.primitive_figures import PrimitiveFigures
from fuseboard.reporting.refusal_samples import RefusalSamples
from fuseboard.reporting.refusal_tokens import RefusalTokens
from fuseboard.reporting.seals import Seals, read_seal_keys
from fuseboard.reporting.sidecar_figures import SidecarFigures
from fuseboard.reporting.sync_thread import SyncThread
from fuseboard.settings import AgentSettings
from fuseboard.store import open_store
from fuseboard.without_redis.journal import Journal

logger = logging.getLogger("fuseboard")

#: How long the sync thread waits for the loop's state before it repeats the last one.
LOOP_ANSWER_S = 0.25
#: After an edit, pods acknowledge within this part of their interval, so that they do not all come at once.
ACKNOWLEDGE_PART = 0.2
#: How long ``start`` waits for the first answer of Redis before the pod decides calls alone.
CONNECT_S = 0.5
#: How long the first heartbeat waits for the same.
FIRST_BEAT_S = 0.1
#: A bound on retries that no heartbeat repeats ends after so many.
CAPS_BEATS = 3
#: The longest time that ``stop`` takes, and the extra time for cancelled parts.
STOP_S = 0.5
GIVE_UP_S = 0.1


class Runtime:
    """Belongs to the loop it is started on. Is started once."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        most = settings.most_subjects
        self.configuration = Configuration(environment=settings.environment, most_tenants=most)
        self.counters = Counters(most)
        self.primitives = PrimitiveFigures()
        self.sidecar_figures = SidecarFigures()
        self.refusal_tokens = RefusalTokens()
        self.refusal_tokens.use_clock(self.configuration.clock.now_us)
        self.refusal_samples = RefusalSamples()
        self.admission = compose_admission(
            configuration=self.configuration,
            counters=self.counters,
            store=open_store(settings.redis_url),
            server=settings.server,
            environment=settings.environment,
            service=settings.service,
            on_change=self._heartbeat_soon,
            signer=self.refusal_tokens,
            guards_calls=not settings.serves_node,
            most_subjects=settings.most_subjects,
        )
        self.inbound = self._make_inbound()
        self.retries = compose_retries(self.configuration, self.admission)
        #: The observer shows decisions to people, if OpenTelemetry is on.
        self.observer: Observer | None = None
        self._begin_telemetry: Callable[[], None] = lambda: None
        self._end_telemetry: Callable[[], None] = lambda: None
        if settings.otel:
            self._observe()
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The thread in which the loop runs.
        self.thread = 0
        self._disk: Disk | None = None
        keys_file = self._use_disk(settings.state_dir)
        self.seals = Seals(keys_file, expected=bool(settings.url) and not settings.off)
        self.configuration.listen(self._size_journal)
        self._keeper = DiskWriter(self.configuration, self._disk)
        self.watch = Watch(
            url=settings.redis_url,
            configuration=self.configuration,
            breaker_opened=self.admission.breaker_opened,
        )
        self.watch.listen(
            keys.budget_channel(self.configuration.environment),
            self.admission.redis_fallback.budgets.cleared,
        )
        self._sync: SyncThread | None = None
        self._first_beat, self._left = asyncio.Event(), asyncio.Event()

    def _make_inbound(self) -> Inbound:
        call_shedding = CallShedding(self.configuration, self.admission.guarded)
        self.configuration.listen(call_shedding.adopt)
        return Inbound(
            calls=GuardLoads(self.admission.guards),
            call_shedding=call_shedding,
            configuration=self.configuration,
            counters=self.counters,
            decisions=DecisionBuilder(self._settings.server, self.admission.health, self.refusal_tokens),
            on_change=self._heartbeat_soon,
            enabled=not self._settings.serves_node,
            most_subjects=self._settings.most_subjects,
        )

    def _use_disk(self, folder: Path | None) -> Path | None:
        """Return the file for the keys; ``None`` without a folder."""
        if folder is None:
            return None
        environment, service = self._settings.environment, self._settings.service
        self._disk = Disk(folder, environment=environment, service=service)
        fallback = self.admission.redis_fallback
        counts = fallback.limits.offline
        fallback.drain.journal = Journal(folder, environment=environment, service=service, counts=counts)
        return folder / f"{environment}@{service}.keys"

    def _observe(self) -> None:
        """Only here, and only if it is on: nothing else imports OpenTelemetry."""
        from fuseboard.telemetry.observe import Telemetry

        telemetry = Telemetry(self.counters, self.retries, self.admission.guards, self.primitives)
        self.observer = self.retries.observer = telemetry
        self._begin_telemetry, self._end_telemetry = telemetry.start, telemetry.close

    # Start and stop

    async def start(self) -> None:
        """Ready within 2 s when no server answers, and at once when they answer or refuse."""
        settings, began = self._settings, monotonic()
        self.loop, self.thread = asyncio.get_running_loop(), get_ident()
        if settings.off:
            logger.warning(
                "agent.off: FUSEBOARD_REDIS_URL is off, so every call passes and no pod is reported"
            )
            return
        self._begin_telemetry()
        self.inbound.start(self.loop)
        if self._disk is not None:
            await apply_from_disk(self.configuration, self._disk, timeout_s=settings.boot_file_s)
            await read_seal_keys(self.seals, timeout_s=settings.boot_file_s)
        self.admission.start()
        self.watch.start()
        # Otherwise the first heartbeat after every restart would report local mode.
        tried = self.admission.health.tried
        await wait_for_event(tried, FIRST_BEAT_S)
        self._sync = self._make_sync(LoopPort(self.loop))
        self.configuration.listen(self._acknowledge)
        self._sync.start()
        if settings.url:
            await wait_for_event(self._first_beat, settings.boot_http_s)
        if self.configuration.snapshot.source is not ConfigSource.HTTP:
            await wait_for_event(self.watch.looked, settings.boot_redis_s - (monotonic() - began))
        if settings.bootstrap_file is not None:
            await apply_bootstrap(self.configuration, settings.bootstrap_file, timeout_s=settings.boot_file_s)
        await wait_for_event(tried, began + CONNECT_S - monotonic())
        head, source = self.configuration.snapshot.head, self.configuration.snapshot.source
        logger.info("agent.started source=%s revision=%d mode=%s", source, head.revision, self.admission.mode)
        if self.admission.mode is Mode.LOCAL:
            cause = self.admission.mode_cause
            logger.warning("agent.local: Redis cannot be reached (%s): this pod decides alone", cause)

    async def stop(self) -> None:
        """Send what is not reported yet, sign off and disconnect. Parts that take longer than half a second
        are cancelled.
        """
        if self._settings.off:
            return
        # Before the last heartbeat, which reports it: another pod may get the share soon.
        self.admission.redis_fallback.share.give_up()
        self.inbound.stop()
        self._end_telemetry()
        parts: list[asyncio.Task[Any]] = [
            asyncio.create_task(self.admission.stop()),
            asyncio.create_task(self.watch.stop()),
        ]
        if self._sync is not None:
            self._sync.stop()
            parts.append(asyncio.create_task(wait_for_event(self._left, STOP_S)))
        done, late = await asyncio.wait(parts, timeout=STOP_S)
        await stop_tasks(*late, within_s=GIVE_UP_S)
        for part in done:
            if (error := part.exception()) is not None:
                logger.error("agent.stop: %s", error, exc_info=error)

    def _make_sync(self, port: LoopPort) -> SyncThread:
        gateway = None
        if self._settings.url:
            gateway = Gateway(
                settings=self._settings,
                counters=self.counters,
                state=lambda: port.ask(self._describe, timeout_s=LOOP_ANSWER_S),
                refusals=self.refusal_samples,
                primitives=self.primitives,
                sidecar=self.sidecar_figures,
            )
        return SyncThread(
            gateway=gateway,
            receive=lambda exchange: self._receive(port, exchange),
            after_heartbeat=lambda: self._after_heartbeat(port),
            ended=lambda: port.post(self._left.set),
        )

    # On the loop

    def _heartbeat_soon(self) -> None:
        """The mode, a breaker or a share has changed: the control plane hears of it at once."""
        if self._sync is not None:
            self._sync.heartbeat_soon()

    def _size_journal(self, snapshot: Snapshot) -> None:
        """Decisions without Redis use as much memory and disk as the fleet's tuning says."""
        self.admission.redis_fallback.limits.offline.most_keys = snapshot.tuning.journal_keys
        journal = self.admission.redis_fallback.drain.journal
        if journal is not None:
            journal.most_bytes = snapshot.tuning.journal_bytes

    def _acknowledge(self, _: Snapshot) -> None:
        if self._sync is not None:
            self._sync.heartbeat_soon(within_s=self._sync.pace_s * ACKNOWLEDGE_PART)

    def _describe(self) -> PodState:
        admission = self.admission
        admission.calls.breakers.refresh()  # the next heartbeat has what Redis answers
        return PodState(
            applied=self.configuration.applied,
            mode=admission.mode,
            mode_for_ms=admission.mode_for_ms,
            mode_cause=admission.mode_cause,
            breakers=admission.breaker_views(),
            want=self.configuration.wanted(),
            share=admission.redis_fallback.share.held,
            protection=self.retries.reported(admission.guards.loads()),
            load=self.inbound.load(),
            alone=admission.redis_fallback.allowed_alone(),
            uncharged=admission.uncharged(),
            seen=admission.outcomes.seen(),
        )

    def _adopt(self, exchange: Exchange, offer: CheckedConfig | None) -> None:
        configuration, response = self.configuration, exchange.response
        configuration.clock.observe(
            response.server_time_us, asked_ns=exchange.asked_ns, answered_ns=exchange.answered_ns
        )
        configuration.live_servers = response.live_servers
        self.admission.store.pretend(response.drill, asked=exchange.asked_ns / 1e9)
        if response.share is not None:
            self.admission.redis_fallback.share.take(response.share, asked=exchange.asked_s)
        self.inbound.grant(response.unready_ms, exchange.asked_ns / 1e9)
        self.retries.cap(response.retry_caps, valid_s=CAPS_BEATS * response.next_ms / 1000)
        self.refusal_tokens.take(response.refusal_key, response.explain_url)
        self.refusal_samples.take(response.digest_key)
        changed = offer is not None and configuration.apply(offer)
        configuration.apply_overrides(response.held)
        if not configuration.complete and configuration.fetch is not None:
            configuration.fetch()
        # Fetching all tenants takes more than one heartbeat. Go on while new ones arrive.
        if (changed or response.tenants) and configuration.wanted(1) and self._sync is not None:
            self._sync.heartbeat_soon()

    # In the sync thread

    def _receive(self, port: LoopPort, exchange: Exchange) -> None:
        request, response = exchange.request, exchange.response
        self.seals.take(response.seal_keys)
        offer: CheckedConfig | None = None
        if not self.configuration.is_poisoned(response.head):
            try:
                offer = check_config(
                    environment=self._settings.environment,
                    head=response.head,
                    document=bytes(response.policy),
                    tenants=check_tenants(response.tenants),
                    source=ConfigSource.HTTP,
                    complete=not response.refetch_tenants and request.applied.epoch == response.head.epoch,
                )
            except ConfigError as error:
                port.post(self.configuration.reject, error, head=response.head, source=ConfigSource.HTTP)
        port.post(self._adopt, exchange, offer)

    def _after_heartbeat(self, port: LoopPort) -> None:
        port.post(self._first_beat.set)
        self.seals.store()
        kept = port.ask(self._keeper.due, timeout_s=LOOP_ANSWER_S)
        if kept is not None:
            self._keeper.write(kept)
