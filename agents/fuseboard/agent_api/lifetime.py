"""The life of an agent from start to stop, and its state."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Self

from fuseboard.calling.observer import Observer
from fuseboard.calling.retries import Retries
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.timeouts import timeout_ms_of
from fuseboard.contract.words import Mode
from fuseboard.errors import Misconfigured
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.sidecar_figures import SidecarFigures
from fuseboard.runtime import Runtime
from fuseboard.settings import AgentSettings

logger = logging.getLogger("fuseboard")

_NOT_STARTED = "the agent is not started: call 'await agent.start()' or use 'async with agent:'"


class Lifetime:
    """Belongs to the event loop it was started on."""

    def __init__(self, *, settings: AgentSettings) -> None:
        self.settings = settings
        self._runtime = Runtime(settings)
        self._running = False
        self._started = False
        #: Every call passes undecided: the agent is stopped, or off.
        self._stopped = False
        #: Defects of the agent itself. Each time, the call was allowed; the first one was logged.
        self.defects = 0

    # Start and stop

    async def start(self) -> None:
        """Connect, and get a configuration from the best source that answers; at most 2 s.

        Starting a running agent does nothing. A stopped agent can be started again.
        """
        if self.running:
            return
        # A server that loads the application before it forks makes one agent for all its workers.
        settings = self.settings.in_this_process()
        if self._stopped or settings is not self.settings:
            self.settings, self._runtime = settings, Runtime(settings)
        self._running = self._started = True
        self._stopped = self.settings.off
        await self._runtime.start()

    async def stop(self) -> None:
        """Send what is not reported yet and sign off; at most half a second."""
        if not self.running:
            return
        self._running, self._stopped = False, True
        await self._runtime.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def running(self) -> bool:
        """From the start to the stop."""
        return self._running

    # State

    @property
    def mode(self) -> Mode:
        return self._runtime.admission.mode

    @property
    def configuration(self) -> Configuration:
        return self._runtime.configuration

    @property
    def counters(self) -> Counters:
        return self._runtime.counters

    @property
    def sidecar_figures(self) -> SidecarFigures:
        """The figures that a sidecar adds to heartbeats."""
        return self._runtime.sidecar_figures

    @property
    def observer(self) -> Observer | None:
        """Shows what happens to people; ``None`` if OpenTelemetry is off."""
        return self._runtime.observer

    @property
    def retries(self) -> Retries:
        """The budgets of retries, and their results."""
        return self._runtime.retries

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop it was started on. Raises ``Misconfigured`` before that."""
        loop = self._runtime.loop
        if loop is None:
            raise Misconfigured(_NOT_STARTED)
        return loop

    def views(self) -> tuple[BreakerView, ...]:
        """Every breaker as this pod sees it."""
        return self._runtime.admission.breaker_views()

    def refused_for_s(self, dependency: str) -> float:
        """The seconds for which this pod refuses every call to the dependency, by what it knows; or 0.

        The reason is an open breaker, an override, or a vendor that asked not to be called. Limits can refuse
        further calls.
        """
        return self._runtime.admission.refused_for_s(dependency)

    def timeout_s(self, dependency: str, tier: str | None = None) -> float | None:
        """The timeout of a call of this tier; ``None`` when the dependency is not registered.

        Without ``tier``, it is that of the tier of callers that name none.
        """
        known = self.configuration.snapshot.dependency(dependency)
        return timeout_ms_of(known, tier) / 1000 if known is not None else None

    def longest_wait_s(self, dependency: str = "", *, tenant: str | None = None) -> float:
        """How long a call to the dependency, or a request of the tenant, waits if its caller does not say.

        Safe in every thread.
        """
        snapshot = self.configuration.snapshot
        if dependency:
            known = snapshot.dependency(dependency)
            return known.wait_ms / 1000 if known is not None else 0.0
        return snapshot.longest_wait_ms(tenant) / 1000 if tenant else 0.0

    def queue_timeout_s(self, dependency: str) -> float | None:
        """How long a call may wait for a slot of the dependency's bulkhead; ``None`` without one."""
        return self._runtime.admission.guards.queue_timeout_s(dependency)

    # The loop

    def _check_loop(self) -> None:
        if not self._started:
            raise Misconfigured(_NOT_STARTED)
        if not self._here():
            raise Misconfigured(
                "an agent belongs to the event loop it was started on: create one for each loop"
            )

    def _here(self) -> bool:
        """Whether the agent's loop is the one that runs in this thread."""
        # Not get_running_loop: it is a system call in Python 3.11, on the path of every decision.
        runtime = self._runtime
        return runtime.loop is not None and get_ident() == runtime.thread and runtime.loop.is_running()

    def _run_on_loop(self, what: Callable[[], None]) -> None:
        """Call ``what`` on the agent's loop: now, or soon when this is another thread."""
        if self._stopped:
            return
        if self._here():
            self._safely(what)
        else:
            self.soon(what)

    def soon(self, what: Callable[[], None]) -> None:
        """Call ``what`` on the agent's loop later: for other threads, and for finalizers in any thread."""
        loop = self._runtime.loop
        if not self._stopped and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to do
                loop.call_soon_threadsafe(self._safely, what)

    def _safely(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:
            self._note_defect()

    def _note_defect(self) -> None:
        """A defect of the agent must not fail the application's call. The first one is logged with its
        trace.
        """
        self.defects += 1
        if self.defects == 1:
            logger.exception("agent.defect: the call was allowed; further ones are only counted")
