"""A FastAPI application, with or without the middleware: ``python -m ... plain|guarded REDIS_URL LOOP``."""

import logging
import socket
import sys

import uvicorn
from fastapi import FastAPI

from fuseboard.agent import Agent
from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.integrations.asgi import FuseboardMiddleware
from fuseboard.settings import AgentSettings
from tools.bench.side_by_side import ours

TENANT_HEADER = b"x-tenant"


def application() -> FastAPI:
    app = FastAPI()

    @app.get("/orders/{number}")
    async def order(number: int) -> dict[str, int]:
        return {"number": number}

    return app


def tenant_of(scope) -> str | None:
    for name, value in scope["headers"]:
        if name == TENANT_HEADER:
            return value.decode()
    return None


def guarded(redis_url: str):
    agent = Agent(settings=AgentSettings(redis_url=redis_url, environment="fastapi", server="bench"))
    served = ours.configured("fastapi", ours.PATIENT)
    snapshot = served.snapshot
    agent.configuration.apply(
        CheckedConfig(
            head=snapshot.head,
            source=snapshot.source,
            policy=snapshot.policy,
            document=served.document,
            tenants=snapshot.tenants.as_dict(),
        )
    )
    app = application()
    app.add_middleware(FuseboardMiddleware, agent=agent, tenant=tenant_of)

    @app.get("/local-decisions")
    async def local_decisions() -> int:
        return agent.counters.local_decisions

    return app


def main() -> None:
    logging.disable(logging.WARNING)
    app = guarded(sys.argv[2]) if sys.argv[1] == "guarded" else application()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="error", access_log=False, loop=sys.argv[3])
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
