"""One pod of a storm: ``python -m tools.experiments.storm_pod FOLDER VENDOR_PORT PER_S SECONDS SEED [URL]``.

It says ``ready`` when its agent runs, begins with the first line it is sent, and ends with one line of JSON:
when it made each attempt, on the clock that all processes share, and whether that was a first call.
"""

import asyncio
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from time import monotonic

from fuseboard.agent import Agent
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy, Tier
from fuseboard.contract.protection import CallProtection, Retry
from tests.agents.alone import settings_with

NAME = "vendor"
#: No breaker ends the outage for the pods: the budgets alone have to.
NEVER = BreakerPolicy(consecutive_failures=0, failure_percent=100, minimum_calls=1_000_000)
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(
        Dependency(
            name=NAME, breaker=NEVER, protection=CallProtection(retry=Retry(idempotent=True, base_ms=200))
        ),
    ),
)


class Pod:
    def __init__(self, agent: Agent, port: int, naive: bool) -> None:
        self.agent, self._port, self._naive = agent, port, naive
        self.attempts: list[tuple[float, bool]] = []

    async def call(self) -> None:
        """One call of a user, with the retries that the agent allows."""
        number = 0
        try:
            if self._naive:
                for number in range(3):
                    try:
                        return await self._ask(number == 0)
                    except OSError:
                        await asyncio.sleep(0.05)
            else:
                async for attempt in self.agent.retrying(NAME, deadline_s=20):
                    async with attempt:
                        number += 1
                        await self._ask(number == 1)
        except OSError:
            return  # what its user gets

    async def _ask(self, first: bool) -> None:
        self.attempts.append((monotonic(), first))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            if await reader.read(1) != b"1":
                raise ConnectionResetError("the vendor went down")
        finally:
            writer.close()

    async def run(self, per_s: float, seconds: float, random: Random) -> None:
        ends = monotonic() + seconds
        async with asyncio.TaskGroup() as calls:
            while (now := monotonic()) < ends:
                calls.create_task(self.call())
                await asyncio.sleep(min(random.expovariate(per_s), ends - now))


async def main(folder: str, port: str, per_s: str, seconds: str, seed: str, url: str = "") -> None:
    settings = settings_with(Path(folder), POLICY)
    naive = url == "naive"
    settings = replace(
        settings, url="" if naive else url, token="storm", server=f"pod-{seed}", state_dir=None
    )
    async with Agent(settings=settings) as agent:
        pod = Pod(agent, int(port), naive)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        await pod.run(float(per_s), float(seconds), Random(int(seed)))
    json.dump(pod.attempts, sys.stdout)


if __name__ == "__main__":
    # A pod that is not the one whose output is read must not fill the pipe with warnings of the outage.
    logging.disable(logging.CRITICAL)
    os.nice(5)
    asyncio.run(main(*sys.argv[1:]))
