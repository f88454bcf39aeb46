"""A pod as a process: it calls a dependency several times at once, again and again.

It writes what it decides by, as one JSON line per round. The arguments are the dependency and the number of
calls; the rest comes from the environment, as in production.
"""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

import fuseboard


async def main(dependency: str, at_once: int) -> None:
    async with fuseboard.from_env() as agent:
        while True:
            refused: list[str] = []

            async def one(refused: list[str] = refused) -> None:
                try:
                    async with agent.call(dependency, tier="critical"):
                        await asyncio.sleep(0.02)
                except fuseboard.Refused as error:
                    refused.append(str(error.decision.reason))

            await asyncio.gather(*(one() for _ in range(at_once)))
            state: dict[str, Any] = agent.resilience() | {"refused": refused}
            sys.stdout.write(json.dumps(state) + "\n")
            sys.stdout.flush()
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
