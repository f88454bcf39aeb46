"""Pods of one process: ``python -m tools.experiments.vendor_pods NAME REDIS_URL PODS FLEET PER_S SEED URLS``.

``PODS`` are in this process, and ``FLEET`` in all. ``URLS``: JSON, the name of a dependency -> the address of
its vendor. Guarded clients of OpenAI and of Anthropic call each of them ``PER_S`` times a second. The process
says ``ready`` when its agents decide by Redis, begins with the line that has the moment and the seconds, and
ends with one line of JSON.
"""

import asyncio
import json
import logging
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from random import Random
from time import monotonic
from typing import Any

import anthropic
import openai

from fuseboard import Agent, AgentSettings, Mode, Refused
from fuseboard.configuration.current_configuration import Configuration
from tests.llm.pods import claude, gpt
from tests.llm.vendor import Vendor
from tests.patient_pods import patiently
from tests.waiting import eventually

SAMPLE_S, LATE_S = 5.0, 1.0
#: Longer than a pause of a busy machine.
PATIENCE_S = 60.0
ASKED: list[Any] = [{"role": "user", "content": "Is there room for one more?"}]
MODEL = "any-model"
LIMITED = (openai.RateLimitError, anthropic.RateLimitError)


class Calls:
    """What became of them: the seconds since the beginning, by vendor."""

    def __init__(self, vendors: dict[str, str]) -> None:
        self.ok: dict[str, list[float]] = {name: [] for name in vendors}
        self.refused: dict[str, list[float]] = {name: [] for name in vendors}
        #: Refused by the limit here, and what must not happen.
        self.held = dict.fromkeys(vendors, 0)
        self.errors: list[str] = []
        #: (seconds, the number that applies in the first pod)
        self.followed: dict[str, list[tuple[float, int]]] = {name: [] for name in vendors}
        #: Decisions that the pods made without Redis.
        self.alone = 0
        #: The longest delay of a call, on a machine that is busy.
        self.late_s = 0.0
        self.began = 0.0

    async def call(self, name: str, client: Any) -> None:
        try:
            if isinstance(client, openai.AsyncOpenAI):
                await client.chat.completions.create(
                    model=MODEL, messages=ASKED, max_completion_tokens=20, timeout=PATIENCE_S
                )
            else:
                await client.messages.create(model=MODEL, messages=ASKED, max_tokens=20, timeout=PATIENCE_S)
        except LIMITED:
            self.refused[name].append(monotonic() - self.began)
        except Refused:
            self.held[name] += 1
        except Exception as error:
            self.errors.append(f"{name}: {error!r}"[:200])
        else:
            self.ok[name].append(monotonic() - self.began)

    async def sample(self, agents: list[Agent]) -> None:
        while True:
            calls = agents[0]._runtime.admission.calls
            for name, found in self.followed.items():
                if (breaker := calls.breakers.get(name)) is not None:
                    (limit,) = breaker.dependency.vendor_limits
                    found.append((monotonic() - self.began, limit.limit))
            await asyncio.sleep(SAMPLE_S)


async def offer(
    calls: Calls, name: str, clients: list[Any], per_s: float, seconds: float, draw: Random
) -> None:
    """Callers come by chance; one that is refused does not come back."""
    due = calls.began
    async with asyncio.TaskGroup() as group:
        while (due := due + draw.expovariate(per_s)) < calls.began + seconds:
            late_s = monotonic() - due
            calls.late_s = max(calls.late_s, late_s)
            # Callers do not make up for a pause of the machine.
            due += max(0.0, late_s - LATE_S)
            await asyncio.sleep(max(0.0, -late_s))
            group.create_task(calls.call(name, draw.choice(clients)))


def _at(url: str) -> Vendor:
    """One of another process."""
    vendor = Vendor()
    vendor.url = url
    return vendor


def _decides(agent: Agent) -> bool:
    return agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision > 0


async def main(name: str, redis_url: str, pods: str, fleet: str, per_s: str, seed: str, vendors: str) -> None:
    # No deadline of Redis is part of this.
    Configuration.apply = patiently(Configuration.apply)  # type: ignore[method-assign]
    urls: dict[str, str] = json.loads(vendors)
    async with AsyncExitStack() as stack:
        agents: list[Agent] = []
        clients: dict[str, list[Any]] = {vendor: [] for vendor in urls}
        vendors_of = {vendor: _at(url) for vendor, url in urls.items()}
        for number in range(int(pods)):
            settings = AgentSettings(redis_url=redis_url, server=f"{name}-{number}")
            agents.append(agent := await stack.enter_async_context(Agent(settings=settings)))
            for vendor, at in vendors_of.items():
                # A key of one account; the vendor speaks the formats of both.
                guarded = (gpt if number % 2 else claude)(agent, at, vendor)
                clients[vendor].append(await stack.enter_async_context(guarded))
        for agent in agents:
            await eventually(partial(_decides, agent), within_s=PATIENCE_S)
            # What the control plane would report.
            agent.configuration.live_servers = int(fleet)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        began, seconds = map(float, (await asyncio.to_thread(sys.stdin.readline)).split())
        calls = Calls(urls)
        calls.began = began
        await asyncio.sleep(max(0.0, began - monotonic()))
        sampling = asyncio.create_task(calls.sample(agents))
        draw = Random(int(seed))
        async with asyncio.TaskGroup() as group:
            for vendor in urls:
                group.create_task(
                    offer(calls, vendor, clients[vendor], float(per_s), seconds, Random(draw.random()))
                )
        calls.alone = sum(agent.counters.local_decisions for agent in agents)
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
    json.dump(vars(calls), sys.stdout)


if __name__ == "__main__":
    # Agents log every refusal, and the figures tell the same.
    logging.disable(logging.CRITICAL)
    asyncio.run(main(*sys.argv[1:]))
