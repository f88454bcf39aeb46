"""Twenty pods follow a vendor through Redis while its primary is killed, and Sentinels name another one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from msgspec.structs import replace

from fuseboard.admission import followed_limits
from fuseboard.admission.followed_limits import FollowedLimits
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency
from fuseboard.contract.words import Mode, Outcome
from tests.agents.limit_kinds import window
from tests.agents.redis_topologies import DOWN_AFTER_MS, PAUSED_S, Member, Watched
from tests.agents.servers import BREAKER, PATIENT, POLICY, Server, configured, running
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)
PODS, CONFIGURED, LOWEST = 20, 600, 60
#: A tenth of the usual one: the script gets it from the pods.
TICK_S = 0.5
#: A tenth of a tick apart: after a fall, the limit rests for two ticks.
QUIET_LOOKS = 40
PATIENCE_S = 90.0
FAILOVER_S = DOWN_AFTER_MS / 1000 + PAUSED_S
RULES = replace(
    POLICY,
    dependencies=(
        Dependency(name="vendor", vendor_limits=(window(CONFIGURED, 60, name="minute"),), breaker=BREAKER),
    ),
    tuning=replace(PATIENT, vendor_floor_percent=10),
)
KEY = keys.learned("production", "vendor", "minute")
LOOK = """
local time, text = redis.call('TIME'), redis.call('GET', KEYS[1])
local learned = text and cmsgpack.unpack(text) or { steps = 0, limit = 0 }
return { time[1] * 1000000 + time[2], learned.steps, math.floor(learned.limit) }
"""


class Seen(NamedTuple):
    """What a primary had learned, at its own time; 0 for nothing."""

    at_us: int
    steps: int
    limit: int


class Fleet:
    """The vendor refuses half of the calls while ``refuses``."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.refuses = True
        #: By pod: the numbers that the script answered. By primary: what was seen in it.
        self.answers: list[int] = []
        self.seen: dict[int, list[Seen]] = {}

    @property
    def applied(self) -> set[int]:
        return {
            limit.limit
            for server in self.servers
            for limit in server.admission.calls.breakers["vendor"].dependency.vendor_limits
        }

    async def call(self) -> None:
        while True:
            for server in self.servers:
                for _ in range(4):
                    server.counters.call("vendor", Outcome.OK)
                limited = server.admission.outcomes.limited
                limited["vendor"] = limited.get("vendor", 0) + 2 * self.refuses
            await asyncio.sleep(TICK_S / 5)

    async def look(self, watched: Watched) -> None:
        while True:
            with suppress(redis.RedisError):
                primary = await asyncio.to_thread(watched.primary)
                seen = Seen(*await asyncio.to_thread(primary.client.eval, LOOK, 1, KEY))
                self.seen.setdefault(primary.port, []).append(seen)
            await asyncio.sleep(TICK_S / 10)


@asynccontextmanager
async def following(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(followed_limits, "TICK_S", TICK_S)
    learn = FollowedLimits._learn
    async with AsyncExitStack() as stack:
        names = [f"web-{number}" for number in range(PODS)]
        servers = [
            await stack.enter_async_context(running(watched.url, name, configured(RULES))) for name in names
        ]
        fleet = Fleet(servers)

        def learned(self: FollowedLimits, name: str, limit: object, reply: list[int]) -> None:
            fleet.answers.append(reply[0])
            learn(self, name, limit, reply)  # type: ignore[arg-type]

        monkeypatch.setattr(FollowedLimits, "_learn", learned)
        for server in servers:
            # The dependency is known from its first call on.
            server.admission.report(await server.admission.admit_call("vendor"), Outcome.OK, 0)
        tasks = [asyncio.create_task(one) for one in (fleet.call(), fleet.look(watched))]
        try:
            yield fleet
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def kill(victim: Member, successor: Member, *, keeps: bool) -> None:
    """The primary dies; without ``keeps``, what it learned never reached its replica."""
    victim.client.set("replicated", 1)
    assert victim.client.execute_command("WAIT", 1, 20_000) == 1
    victim.kill()
    if not keeps:
        successor.client.config_set("replica-read-only", "no")
        successor.client.delete(KEY)
        successor.client.config_set("replica-read-only", "yes")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Its own: the killed one does not come back."""
    formation = Watched(tmp_path)
    try:
        formation.start()
        yield formation
    finally:
        formation.stop()


@pytest.mark.parametrize(
    "keeps",
    [
        pytest.param(False, id="the replica does not have it"),
        # Sentinels take 15 s here, beside the time of the case above.
        pytest.param(True, id="the replica has it", marks=pytest.mark.slow),
    ],
)
async def test_twenty_pods_make_one_step_per_tick_through_a_failover(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, keeps: bool
):
    """Case L15: with what was learned the limit stays, and without it the configured one applies again."""
    victim = watched.primary()
    successor = next(one for one in watched.data if one is not victim)
    async with following(watched, monkeypatch) as fleet:
        await eventually(lambda: max(fleet.applied) < CONFIGURED, within_s=PATIENCE_S)
        fleet.refuses = False
        await eventually(lambda: _rests(fleet, fleet.seen[victim.port]), within_s=PATIENCE_S)
        learned, answered = fleet.applied, len(fleet.answers)
        await asyncio.to_thread(kill, victim, successor, keeps=keeps)
        await eventually(
            lambda: all(one.admission.mode is Mode.LOCAL for one in fleet.servers), within_s=FAILOVER_S
        )
        assert fleet.applied == learned, "without Redis, the last number applies"
        await eventually(lambda: len(fleet.seen.get(successor.port, ())) > 1, within_s=FAILOVER_S)
        await eventually(lambda: len(fleet.answers) > answered + 2 * PODS, within_s=FAILOVER_S)
        expected = learned if keeps else {CONFIGURED}
        await eventually(lambda: fleet.applied == expected, within_s=PATIENCE_S)
        assert set(fleet.answers[answered:]) <= learned | expected
        # The fleet goes on to learn there.
        fleet.refuses = True
        await eventually(lambda: max(fleet.applied) < min(expected), within_s=PATIENCE_S)
    assert LOWEST <= min(fleet.answers) <= max(fleet.answers) <= CONFIGURED
    assert set(fleet.seen) == {victim.port, successor.port}
    for seen in fleet.seen.values():
        _one_step_per_tick(seen)


def _rests(fleet: Fleet, seen: list[Seen]) -> bool:
    """No refusal is left that would count, and each pod has the last number."""
    return len({one.limit for one in seen[-QUIET_LOOKS:]}) == 1 and fleet.applied == {seen[-1].limit}


def _one_step_per_tick(seen: list[Seen]) -> None:
    # The first step may be due at once.
    for before, after in pairwise(seen):
        passed = (after.at_us - before.at_us) / (TICK_S * 1e6)
        assert after.steps - before.steps <= passed + 1, (before, after)
    first, last = seen[0], seen[-1]
    assert last.steps - first.steps <= (last.at_us - first.at_us) / (TICK_S * 1e6) + 1
