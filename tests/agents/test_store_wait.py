"""Calls of a dependency that wait longer for Redis than those of others."""

import asyncio
import signal
from time import monotonic

import redis
from msgspec.structs import replace

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import MAX_STORE_WAIT_MS, Dependency
from fuseboard.contract.sync import Drill
from fuseboard.contract.words import DrillKind, Mode, Outcome
from tests.agents.servers import BREAKER, CALLS, PATIENT, POLICY, SHORT_US, configured, give, running
from tests.waiting import eventually


def rules(store_wait_ms: int):
    slow = Dependency(name="llm", vendor_limits=(CALLS,), breaker=BREAKER, store_wait_ms=store_wait_ms)
    tuning = replace(PATIENT, store_deadline_us=SHORT_US)
    return replace(POLICY, dependencies=(*POLICY.dependencies, slow), tuning=tuning)


async def test_a_call_that_may_wait_is_decided_by_a_slow_redis_and_others_by_their_pod(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, configuration=configured(rules(MAX_STORE_WAIT_MS))) as server:
        drill = Drill(id=1, kind=DrillKind.SLOW, remaining_ms=60_000)
        server.admission.store.pretend(drill, asked=monotonic())

        async def modes() -> list[Mode]:
            permits = await asyncio.gather(
                *(server.admission.admit_call(name) for name in ("llm", "payments"))
            )
            for permit in permits:
                server.admission.report(permit, Outcome.OK)
            return [permit.decision.mode for permit in permits]

        # A stall of the machine makes any Redis late.
        await eventually(modes, accept=lambda found: found == [Mode.SHARED, Mode.LOCAL])
        # The next policy has no such wait.
        give(server.configuration, rules(0), revision=8)
        await eventually(modes, accept=lambda found: found == [Mode.LOCAL, Mode.LOCAL])


async def test_a_call_that_may_wait_delays_no_other_and_is_decided_without_redis_in_the_end(valkey: Valkey):
    async with running(valkey.url, configuration=configured(rules(MAX_STORE_WAIT_MS))) as server:
        assert valkey.process is not None
        valkey.process.send_signal(signal.SIGSTOP)
        try:
            calls = [asyncio.create_task(server.admission.admit_call(name)) for name in ("llm", "payments")]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            assert calls[1] in done
            permits = await asyncio.wait_for(asyncio.gather(*calls), 60)
            assert {permit.decision.mode for permit in permits} == {Mode.LOCAL}
        finally:
            valkey.process.send_signal(signal.SIGCONT)
