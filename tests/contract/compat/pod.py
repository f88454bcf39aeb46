"""A pod, written for the agent of version 0.1.0: reads commands from stdin, answers each with a line of JSON.

``request TENANT`` decides a request of a tenant, ``call DEPENDENCY`` makes a call, which succeeds.
``spend TENANT QUOTA NUMBER`` decides requests at the same time until the quota has decided each. The
file is run by its path, so that PYTHONPATH alone selects the version of the agent.
"""

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import fuseboard

#: One request is decided again for this number of times, 20 ms apart.
TRIES = 1000


async def main() -> None:
    agent = fuseboard.from_env()
    async with agent:
        say(agent=fuseboard.__file__)
        while line := await asyncio.to_thread(sys.stdin.readline):
            kind, _, name = line.strip().partition(" ")
            if kind == "spend":
                say(**await spend(agent, *name.split()))
                continue
            decision = await (request if kind == "request" else call)(agent, name)
            say(
                allowed=decision.allowed,
                reason=str(decision.reason or ""),
                rule=decision.rule,
                revision=decision.revision,
                mode=str(decision.mode),
                local=any(charge.local for charge in decision.charges),
                limits=[limit.name for limit in decision.limits],
            )


async def request(agent: fuseboard.Agent, tenant: str) -> Any:
    return await agent.check(tenant)


async def spend(agent: fuseboard.Agent, tenant: str, quota: str, number: str) -> Counter[str]:
    """The number ``allowed`` and ``refused``; other answers by their reason, and errors by their text."""
    found = Counter[str]()

    async def one() -> None:
        for _ in range(TRIES):
            try:
                decision = await agent.check(tenant)
            except Exception as error:  # a failed call, whatever it was
                found[f"error: {type(error).__name__}: {error}"[:200]] += 1
                return
            if decision.allowed and any(limit.name == quota for limit in decision.limits):
                found["allowed"] += 1
                return
            if not decision.allowed and (decision.reason, decision.rule) == ("quota", quota):
                found["refused"] += 1
                return
            # Redis answered too late on a busy machine, or the tenant's record did.
            found[f"again: {decision.reason or 'default tier'}"] += 1
            await asyncio.sleep(0.02)
        found["undecided"] += 1

    await asyncio.gather(*(one() for _ in range(int(number))))
    return found


async def call(agent: fuseboard.Agent, dependency: str) -> Any:
    try:
        async with agent.call(dependency) as permit:
            return permit.decision
    except fuseboard.Refused as refused:
        return refused.decision


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
