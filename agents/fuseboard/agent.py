"""The agent, as an application holds it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from types import TracebackType
from typing import Self

from fuseboard.configuration.holder import Configuration
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import Mode, Outcome, is_slug, is_subject
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Misconfigured, Refused
from fuseboard.outcomes import outcome_of_exception
from fuseboard.reporting.counters import MAX_DEPENDENCIES, Counters
from fuseboard.runtime import Runtime
from fuseboard.settings import AgentSettings

logger = logging.getLogger("fuseboard")

#: Ids that no tenant can have (empty, too long, control characters) share the default tier's
#: quotas under this one name: what a client sends must neither fail a request nor escape a limit.
INVALID_TENANT = "(invalid)"

_DEFAULT_BREAKER = BreakerPolicy()


class Agent:
    """Decides every call of a pod, with Redis or without.

    Belongs to the event loop it was started on. Raises ``Refused`` from ``admit_call`` and
    ``call``, and ``Misconfigured`` for wrong use; nothing else, whatever breaks.
    """

    def __init__(self, *, settings: AgentSettings) -> None:
        self.settings = settings
        self._runtime = Runtime(settings)
        self._started = False
        self._stopped = False
        self._names: set[str] = set()
        #: Defects of the agent itself; each was logged, and the call allowed.
        self.defects = 0

    # From start to stop

    async def start(self) -> None:
        """Connect, and get a configuration from the best source that answers; at most 2 s.

        Starting a running agent does nothing; starting a stopped one begins anew.
        """
        if self.running:
            return
        if self._stopped:
            self._runtime = Runtime(self.settings)
        self._started, self._stopped = True, False
        await self._runtime.start()

    async def stop(self) -> None:
        """Report what is unreported and say good-bye; at most half a second."""
        if not self.running:
            return
        self._stopped = True
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
        return self._started and not self._stopped

    # Requests that enter a service

    async def admit_request(self, tenant: str, cost: int = 1) -> Decision:
        """Decide one request of a tenant that costs ``cost`` of its quotas.

        Never raises for anything a store or the control plane does; ``Misconfigured`` for a
        tenant that is no text, and for a cost that is no whole number of at least 1.
        """
        if not isinstance(tenant, str):
            raise Misconfigured(f"tenant must be text, not {type(tenant).__name__}")
        runtime = self._runtime
        self._check_loop()
        if tenant not in runtime.configuration.snapshot.tenants and not is_subject(tenant):
            tenant = INVALID_TENANT
        if self._stopped:
            return self._allowed(tenant=tenant)
        try:
            decision = await runtime.admission.admit_request(tenant, cost)
            if not runtime.configuration.snapshot.quotas_of(tenant).known:
                runtime.counters.unknown_tenant()
        except Misconfigured:
            raise
        except Exception:
            self._note_defect()
            return self._allowed(tenant=tenant)
        return decision

    # Calls that leave a service

    async def admit_call(self, dependency: str) -> Permit:
        """Leave to make one call; ``report`` its outcome. Raises ``Refused``."""
        if dependency not in self._names:
            self._check_name(dependency)
        self._check_loop()
        if not self._stopped:
            try:
                return await self._runtime.admission.admit_call(dependency)
            except (Refused, Misconfigured):
                raise
            except Exception:
                self._note_defect()
        decision = self._allowed(dependency=dependency)
        return Permit(decision=decision, dependency=dependency, generation=0, reported=True)

    def report(self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None) -> None:
        """Say how a permitted call ended, once; further reports of the same permit count nothing.

        With ``elapsed_s``, a success that took longer than the breaker's ``slow_ms`` is slow.
        """
        if self._stopped:
            return
        try:
            if outcome is Outcome.OK and elapsed_s is not None and self._is_slow(permit, elapsed_s):
                outcome = Outcome.SLOW
            self._runtime.admission.report(permit, outcome)
        except Exception:
            self._note_defect()

    @asynccontextmanager
    async def call(
        self, dependency: str, *, neutral: tuple[type[Exception], ...] = ()
    ) -> AsyncIterator[Permit]:
        """Guard one call: admit it, and report how the block ended. Raises ``Refused``.

        ``neutral`` are exceptions that say nothing about the dependency. See
        ``fuseboard.outcomes`` for how the others are judged.
        """
        permit = await self.admit_call(dependency)
        started = monotonic()
        try:
            yield permit
        except BaseException as error:
            outcome = Outcome.NEUTRAL if isinstance(error, neutral) else outcome_of_exception(error)
            self.report(permit, outcome)
            raise
        self.report(permit, Outcome.OK, monotonic() - started)

    # What it knows

    @property
    def mode(self) -> Mode:
        return self._runtime.admission.mode

    @property
    def configuration(self) -> Configuration:
        return self._runtime.configuration

    @property
    def counters(self) -> Counters:
        return self._runtime.counters

    def views(self) -> tuple[BreakerView, ...]:
        """Every breaker as this server sees it."""
        return self._runtime.admission.breaker_views()

    # Parts

    def _check_loop(self) -> None:
        if not self._started:
            raise Misconfigured("the agent is not started: 'await agent.start()', or 'async with agent:'")
        if self._runtime.loop is not asyncio.get_running_loop():
            raise Misconfigured("an agent belongs to the event loop it was started on: make one for each")

    def _check_name(self, dependency: str) -> None:
        if not is_slug(dependency):
            raise Misconfigured("a dependency is named by 1 to 64 letters, digits, '.', '_' or '-'")
        if len(self._names) >= MAX_DEPENDENCIES:
            raise Misconfigured(f"more than {MAX_DEPENDENCIES} dependencies: is a name made from a request?")
        self._names.add(dependency)

    def _is_slow(self, permit: Permit, elapsed_s: float) -> bool:
        known = self.configuration.snapshot.dependency(permit.dependency)
        return elapsed_s * 1000 > (known.breaker if known is not None else _DEFAULT_BREAKER).slow_ms

    def _allowed(self, *, tenant: str = "", dependency: str = "") -> Decision:
        return Decision(
            allowed=True,
            tenant=tenant,
            dependency=dependency,
            revision=self.configuration.snapshot.head.revision,
            mode=Mode.LOCAL,
            server=self.settings.server,
        )

    def _note_defect(self) -> None:
        """A defect of ours must not fail the application's call; the first one is logged with its trace."""
        self.defects += 1
        if self.defects == 1:
            logger.exception("agent.defect: the call was allowed; further ones are only counted")


def from_env() -> Agent:
    """An agent with the settings of the environment (``FUSEBOARD_*``). Raises ``Misconfigured``."""
    return Agent(settings=AgentSettings.from_env())
