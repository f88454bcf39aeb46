"""The timer of reports: what is due first is sent first, whatever the event loop knows of its timers."""

import msgspec
import pytest
import redis

from fuseboard.contract import keys
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.words import Outcome
from tests.agents.servers import PATIENT, POLICY, configured, running
from tests.agents.test_late_outcomes import permits, report
from tests.waiting import eventually

pytestmark = pytest.mark.both_loops

BREAKER = BreakerPolicy(consecutive_failures=2, minimum_servers=1, open_ms=60_000)
#: Batches are due at once: uvloop then makes a handle that does not know its time.
AT_ONCE = msgspec.structs.replace(
    POLICY,
    dependencies=(msgspec.structs.replace(POLICY.dependencies[0], breaker=BREAKER),),
    tuning=msgspec.structs.replace(PATIENT, report_interval_ms=0),
)


async def test_failures_right_after_a_report_that_is_due_at_once_open_the_breaker(
    limits: redis.Redis, redis_url: str
):
    """The pod asked the handle for its time, and lost the report: "object has no attribute 'when'"."""
    key = keys.breaker("production", "payments")
    async with running(redis_url, configuration=configured(AT_ONCE)) as server:
        good, *bad = await permits(server, 3)
        report(server, [good], Outcome.OK)
        report(server, bad, Outcome.FAILURE)
        # Its own breaker opens first, whether the fleet hears of it or not.
        await eventually(lambda: (limits.get(key) or b"").startswith(b"open"))
