"""Every decision, in order: what is known here, one question to Redis, else this server's share."""

import asyncio
from collections.abc import Callable
from secrets import token_hex
from time import monotonic

from fuseboard.admission.answers import Answers
from fuseboard.admission.batch import Batcher
from fuseboard.admission.calls import CallAdmission
from fuseboard.admission.limits import LocalLimits
from fuseboard.admission.reports import Reports
from fuseboard.admission.requests import RequestAdmission
from fuseboard.admission.tenant import TenantDomains
from fuseboard.configuration.holder import Configuration
from fuseboard.contract.policy import Tuning
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import Mode, Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.reporting.counters import Counters
from fuseboard.store.connection import Store
from fuseboard.store.health import StoreHealth


class Admission:
    """Belongs to the event loop it was started on. ``on_change``: the mode or a breaker changed."""

    def __init__(
        self,
        *,
        configuration: Configuration,
        counters: Counters,
        store: Store,
        server: str,
        environment: str,
        on_change: Callable[[], None],
    ) -> None:
        def tuning() -> Tuning:
            return configuration.snapshot.tuning

        self._on_change = on_change
        self.health = StoreHealth(
            store=store, environment=environment, tuning=tuning, on_change=self._mode_changed
        )
        self._batcher = Batcher(
            store=store,
            health=self.health,
            meter=counters,
            deadline_s=lambda: tuning().store_deadline_us / 1_000_000,
            token_prefix=f"{token_hex(4)}-",
        )
        self._reports = Reports(store=store, health=self.health, tuning=tuning)
        local = LocalLimits(lambda: configuration.live_servers)
        answers = Answers(server, self.health)
        self._requests = RequestAdmission(
            configuration=configuration,
            counters=counters,
            health=self.health,
            batcher=self._batcher,
            local=local,
            domains=TenantDomains(environment),
            answers=answers,
        )
        self._calls = CallAdmission(
            environment=environment,
            configuration=configuration,
            counters=counters,
            health=self.health,
            batcher=self._batcher,
            reports=self._reports,
            local=local,
            answers=answers,
            on_change=on_change,
        )
        configuration.listen(self._calls.adopt)

    def start(self) -> None:
        """Connect in the background; until then this server decides alone."""
        self.health.start()

    async def stop(self) -> None:
        """Send what is unreported, and disconnect. Callers who still wait decide locally."""
        self._reports.flush()
        self._batcher.close()
        await asyncio.sleep(0)
        await self.health.stop()

    async def admit_request(self, tenant: str, cost: int = 1) -> Decision:
        """Decide one request of a tenant. Nothing that Redis does makes it raise.

        Raises ``Misconfigured`` for a cost that can never be right.
        """
        return await self._requests.admit(tenant, cost)

    async def admit_call(self, dependency: str) -> Permit:
        """Leave to make one call; its outcome belongs in ``report``. Raises ``Refused``."""
        return await self._calls.admit(dependency)

    def report(self, permit: Permit, outcome: Outcome) -> None:
        """Say how a permitted call ended. A second report of the same permit counts nothing."""
        self._calls.report(permit, outcome)

    @property
    def mode(self) -> Mode:
        return self.health.mode

    @property
    def mode_for_ms(self) -> int:
        return int((monotonic() - self.health.since) * 1000)

    @property
    def mode_cause(self) -> str:
        return self.health.cause

    def breaker_views(self) -> tuple[BreakerView, ...]:
        """Every breaker as this server sees it, for the next beat."""
        local = self.health.mode is Mode.LOCAL
        return tuple(
            gate.view(self._calls.override(gate.name), local=local) for gate in self._calls.every_gate()
        )

    def _mode_changed(self) -> None:
        if self.health.mode is Mode.LOCAL:
            self._calls.stand_alone()
        self._on_change()
