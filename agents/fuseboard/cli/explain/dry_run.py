"""What Redis would answer, without being charged for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from fuseboard.batching.batch import Batcher
from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.batching.domains import RequestDomains
from fuseboard.batching.fleet_leases import Leases
from fuseboard.batching.question import Answer, Domain
from fuseboard.batching.settlements import Settlements
from fuseboard.breaker.fleet_breaker import Gate
from fuseboard.contract.policy import Dependency, Limit, Tuning
from fuseboard.contract.words import Algorithm
from fuseboard.reporting.counters import Counters
from fuseboard.store import Store
from fuseboard.store.health import StoreHealth

#: Redis may take its time: a person waits, not a call.
DEADLINE_US = 1_000_000
CONNECT_S = 2.0

#: Of this, two are asked for: whatever else there is, the answer is no, and a refusal changes nothing.
_NEVER = Limit(name="never", limit=1, window_ms=1000, algorithm=Algorithm.SLIDING_WINDOW)


class Peeker:
    """Asks as a pod does, by the same code, for calls that must be refused."""

    def __init__(self, *, store: Store, environment: str, tuning: Tuning) -> None:
        self.changed = asyncio.Event()
        self.health = StoreHealth(store=store, environment=environment, tuning=lambda: tuning)
        self.health.on_change = self.changed.set
        self._environment = environment
        patient = replace(tuning, store_deadline_us=DEADLINE_US)
        self._batcher = Batcher(
            store=store,
            health=self.health,
            meter=Counters(),
            tuning=lambda: patient,
            token_prefix="peek-",  # noqa: S106 - a word, not a secret
        )
        self._settlements = Settlements(store=store, health=self.health)
        self._leases = Leases(
            batcher=self._batcher,
            settlements=self._settlements,
            live_servers=lambda: 1,
            usable=lambda: False,
        )
        self.requests = RequestDomains(environment, self._settlements, together=store.together)

    def gate(self, dependency: Dependency) -> Gate:
        return Gate(
            environment=self._environment,
            server="fuseboard-explain",
            dependency=dependency,
            on_change=self.changed.set,
            report_soon=lambda gate: None,
            counters=Counters(),
            settlements=self._settlements,
            leases=self._leases,
        )

    async def peek(self, domain: Domain, demand: Demand, unused_key: str) -> Answer | None:
        """The answer to a call like ``demand``; ``None`` when Redis does not answer.

        ``blocked`` is the limit that would refuse it, and beyond the demand's limits when none would.
        """
        probe = Demand(
            (*demand.refs, LimitRef(_NEVER, unused_key)), (*demand.costs, 2), priority=demand.priority
        )
        return await self._batcher.ask(domain, probe)


@asynccontextmanager
async def peeking(*, store: Store, environment: str, tuning: Tuning) -> AsyncIterator[Peeker]:
    """Connected, if Redis answers within two seconds."""
    peeker = Peeker(store=store, environment=environment, tuning=tuning)
    peeker.health.start()
    try:
        with contextlib.suppress(TimeoutError):  # then it stays local, and the answer says so
            await asyncio.wait_for(peeker.changed.wait(), CONNECT_S)
        yield peeker
    finally:
        await peeker.health.stop()
