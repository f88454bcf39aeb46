"""A pod, written for the agent of version 0.1.0: reads commands from stdin, answers each with a line of JSON.

``request TENANT`` decides a request of a tenant, ``call DEPENDENCY`` makes a call, which succeeds. The
file is run by its path, so that PYTHONPATH alone selects the version of the agent.
"""

import asyncio
import json
import sys
from typing import Any

import fuseboard


async def main() -> None:
    agent = fuseboard.from_env()
    async with agent:
        say(agent=fuseboard.__file__)
        while line := await asyncio.to_thread(sys.stdin.readline):
            kind, _, name = line.strip().partition(" ")
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
