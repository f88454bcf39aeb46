"""A process with one request that ends when a line arrives on stdin: to be killed or stopped before that.

usage: python -m tests.agents.idempotency_process REDIS_URL LEASE_S
"""

import asyncio
import sys
from typing import Any

from fuseboard import Agent, AgentSettings
from fuseboard.integrations.asgi_idempotency import RUN, IdempotencyMiddleware

SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/orders",
    "query_string": b"",
    "headers": [(b"idempotency-key", b"order-1"), (b"content-type", b"text/plain")],
}


async def order(scope: Any, receive: Any, send: Any) -> None:
    sys.stdout.write(f"{scope[RUN].fence}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"the other process"})


async def main(url: str, lease_s: float) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"one book"}

    async def send(message: Any) -> None:
        """The client does not matter."""

    async with Agent(settings=AgentSettings(redis_url=url, server="other")) as agent:
        app = IdempotencyMiddleware(order, agent, lambda scope: "acme", lease_s=lease_s)
        await app(dict(SCOPE), receive, send)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
