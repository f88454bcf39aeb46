"""The agent's own admission, composed for questions that charge nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from fuseboard.admission.inspection import Inspection
from fuseboard.cancellation import wait_for_event
from fuseboard.composition import compose_admission
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.explain.found_configuration import FoundConfiguration
from fuseboard.reporting.counters import Counters
from fuseboard.store import Store

#: Redis may take longer here: a person waits, not a call.
DEADLINE_US = 1_000_000
CONNECT_S = 2.0


@asynccontextmanager
async def inspecting(
    found: FoundConfiguration, store: Store, *, service: str = ""
) -> AsyncIterator[Inspection]:
    """Decide by the configuration that was found; with Redis, if it answers within two seconds."""
    changed = asyncio.Event()
    tuning = replace(found.policy.tuning, store_deadline_us=DEADLINE_US)
    configuration = Configuration(environment=found.environment, clock=found.clock)
    found.with_policy(replace(found.policy, tuning=tuning)).put_into(configuration)
    admission = compose_admission(
        configuration=configuration,
        counters=Counters(),
        store=store,
        server="fuseboard-explain",
        environment=found.environment,
        service=service,
        on_change=changed.set,
    )
    # Redis that answers the second probe first has its whole limits all the same.
    admission.health.ramps = False
    admission.start()
    try:
        # Without an answer, the mode stays local, and the explanation displays it.
        await wait_for_event(changed, CONNECT_S)
        yield admission.inspect()
    finally:
        await admission.stop()
