"""One process that hammers one strict limit: ``python -m tests.agents.hammer url seconds``.

It says ``ready`` when it is connected, begins with the first line it is sent, and ends with one
line of JSON: the store times of its admissions, and how often it had to decide alone.
"""

import asyncio
import json
import sys
from time import monotonic, time_ns

import msgspec

from fuseboard.contract.policy import Limit, Policy, Tier
from fuseboard.contract.words import Algorithm, FailurePolicy
from tests.agents.servers import TUNING, Server, configured, running

LIMIT, WINDOW_US = 500, 2_000_000
CALLERS = 20

#: Whoever cannot ask Redis is refused: every admission has a time of Redis's clock.
STRICT = Limit(
    name="requests",
    limit=LIMIT,
    window_ms=WINDOW_US // 1000,
    algorithm=Algorithm.SLIDING_WINDOW,
    failure_policy=FailurePolicy.FAIL_CLOSED,
)
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free", quotas=(STRICT,)), Tier(name="unlimited")),
    # Eight of these share a machine with Redis: what is measured is not how long an answer takes.
    tuning=msgspec.structs.replace(TUNING, store_deadline_us=30_000_000, store_timeouts=1000),
)


async def hammer(server: Server, until: float) -> tuple[list[int], list[tuple[int, int]]]:
    """When calls were admitted, and between which times each of the others was asked for and refused."""
    admitted: list[int] = []
    refused: list[tuple[int, int]] = []

    async def ask() -> None:
        while monotonic() < until:
            asked_us = time_ns() // 1000
            decision = await server.admission.admit_request("acme")
            if decision.allowed:
                admitted.append(decision.charges[0].at_us)
                await asyncio.sleep(0)
            else:
                refused.append((asked_us, time_ns() // 1000))
                await asyncio.sleep(min(decision.retry_after_ms, 50) / 1000)

    await asyncio.gather(*(ask() for _ in range(CALLERS)))
    return admitted, refused


async def main(url: str, seconds: float) -> None:
    async with running(url, "hammer", configured(POLICY)) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        admitted, refused = await hammer(server, monotonic() + seconds)
        found = {"admitted_us": admitted, "refused_us": refused, "alone": server.counters.local_decisions}
        json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
