"""The pod of ``overload_process``: ``python -m tools.experiments.overload_pod REDIS_URL FOLDER``."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from fuseboard import Agent, AgentSettings
from fuseboard.errors import Refused
from fuseboard.integrations.asgi import FuseboardMiddleware
from fuseboard.integrations.fastapi import answer_refused

NAME = "payments"
READY = "ready"
#: How long the vendor takes for each call.
SERVICE_S = 1.0


def tenant_of(scope: MutableMapping[str, Any]) -> str | None:
    found = [value.decode() for name, value in scope["headers"] if name == b"x-tenant"]
    return found[0] if found and found[0] else None


def application(agent: Agent) -> Callable[..., Awaitable[None]]:
    app = FastAPI()
    app.add_exception_handler(Refused, answer_refused)

    @app.get("/healthz")
    async def healthz() -> str:
        return "ok"

    @app.get("/order")
    async def order() -> str:
        async with agent.call(NAME):
            await asyncio.sleep(SERVICE_S)
        return "ok"

    return FuseboardMiddleware(app, agent, tenant_of)


async def main(redis_url: str, folder: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=Path(folder) / "pod")) as agent:
        server = uvicorn.Server(uvicorn.Config(application(agent), log_level="critical", lifespan="off"))
        sys.stdout.write(f"{READY} {listening.getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
