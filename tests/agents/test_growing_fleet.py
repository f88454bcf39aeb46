"""Pods join and leave while Redis is up: the sum of all pods stays within a strict limit."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
import redis

from fuseboard.contract.policy import Limit, Policy, Tier
from fuseboard.contract.words import Algorithm, FailurePolicy
from tests.agents.servers import PATIENT, Server, configured, running
from tests.agents.windows import worst_window

LIMIT, WINDOW_US = 500, 1_000_000
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
    tuning=msgspec.structs.replace(PATIENT, store_deadline_us=1_000_000),
)
PHASE_S = 1.2


class Fleet:
    def __init__(self, url: str) -> None:
        self._url = url
        self.admitted_us: list[int] = []
        self._callers: dict[str, asyncio.Task[None]] = {}
        self._exits: dict[str, AsyncExitStack] = {}

    async def join(self, *names: str, revision: int = 7) -> None:
        for name in names:
            exits = self._exits[name] = AsyncExitStack()
            server = await exits.enter_async_context(
                running(self._url, name, configured(POLICY, revision=revision, live_servers=len(self._exits)))
            )
            self._callers[name] = asyncio.create_task(self._call(server))

    async def leave(self, *names: str) -> None:
        for name in names:
            caller = self._callers.pop(name)
            caller.cancel()
            await asyncio.wait([caller])
            await self._exits.pop(name).aclose()

    async def _call(self, server: Server) -> None:
        """Ask for far more than the limit, as one pod of a busy service does."""
        while True:
            decisions = await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(20)))
            # A refused call has no charge. The time is that of Redis.
            self.admitted_us += [one.charges[0].at_us for one in decisions if one.allowed]
            await asyncio.sleep(0.01)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


async def test_ten_pods_become_twenty_and_ten_again(limits: redis.Redis, redis_url: str):
    fleet = Fleet(redis_url)
    await fleet.join(*names("a", 10))
    await asyncio.sleep(PHASE_S)
    await fleet.join(*names("b", 10))
    await asyncio.sleep(PHASE_S)
    await fleet.leave(*names("a", 10))
    await asyncio.sleep(PHASE_S)
    await fleet.leave(*names("b", 10))
    judge(fleet)


async def test_pods_of_two_revisions_share_the_limit_during_a_deployment(limits: redis.Redis, redis_url: str):
    fleet = Fleet(redis_url)
    await fleet.join(*names("old", 10), revision=7)
    await asyncio.sleep(PHASE_S)
    await fleet.join(*names("new", 5), revision=8)
    await asyncio.sleep(PHASE_S)
    await fleet.leave(*names("old", 10))
    await asyncio.sleep(PHASE_S)
    await fleet.leave(*names("new", 5))
    judge(fleet)


def judge(fleet: Fleet) -> None:
    assert worst_window(fleet.admitted_us, WINDOW_US) <= LIMIT
    # The limit was reached, so that it could have been passed.
    assert worst_window(fleet.admitted_us, WINDOW_US) >= 0.9 * LIMIT
