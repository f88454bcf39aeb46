"""A pod of the shop: a FastAPI service with the agent, written as any service would be.

A tenant calls it and it calls a vendor; when a call to the vendor is refused, it uses a fallback.
Run: ``python -m controlplane.demo.pod --port N``, with ``VENDOR_URL`` and the agent's
``FUSEBOARD_*`` variables set.
"""

import argparse
import logging
import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from starlette.middleware.base import RequestResponseEndpoint

import fuseboard
from controlplane.demo.scenario import DEPENDENCIES
from fuseboard.integrations.asgi import FuseboardMiddleware
from fuseboard.integrations.httpx import GuardedTransport

#: The fallback answer while the vendor is not called.
INSTEAD = {dependency.name: dependency.fallback for dependency in DEPENDENCIES}


def tenant_of(scope: MutableMapping[str, Any]) -> str | None:
    """The tenant that a request names in its header; health checks have no tenant."""
    if scope["path"] == "/healthz":
        return None
    return str(dict(scope["headers"]).get(b"x-tenant", b"").decode("latin-1"))


def application(vendor_url: str) -> FastAPI:
    agent = fuseboard.from_env()
    vendors = {
        name: httpx.AsyncClient(
            base_url=f"{vendor_url}/{name}", transport=GuardedTransport(agent, dependency=name), timeout=2.0
        )
        for name in INSTEAD
    }

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for vendor in vendors.values():
                await stack.enter_async_context(vendor)
            yield

    app = FastAPI(lifespan=running, openapi_url=None)
    app.add_middleware(FuseboardMiddleware, agent=agent, tenant=tenant_of)

    @app.middleware("http")
    async def say_who_decided(request: Request, call_next: RequestResponseEndpoint) -> Response:
        """For the checkpoints: which pod answered, in which mode, with which configuration."""
        response = await call_next(request)
        response.headers["X-Fuseboard-Server"] = agent.settings.server
        response.headers["X-Fuseboard-Mode"] = agent.mode
        response.headers["X-Fuseboard-Revision"] = str(agent.configuration.snapshot.head.revision)
        return response

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/{dependency}")
    async def serve(dependency: str) -> dict[str, str | None]:
        if dependency not in vendors:
            raise HTTPException(404)
        try:
            answer = await vendors[dependency].get("/call")
            answer.raise_for_status()
        except fuseboard.Refused as refused:
            # Nothing was sent: the customer gets the fallback at once.
            return {"got": INSTEAD[dependency], "refused_because": refused.decision.reason}
        except httpx.HTTPError as error:
            # The vendor was called and failed: the same for the customer, only later.
            return {"got": INSTEAD[dependency], "failed_with": type(error).__name__}
        return {"got": "the requested result"}

    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="{asctime} {name}: {message}", style="{")
    logging.getLogger("fuseboard").setLevel(logging.INFO)
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, required=True)
    given = arguments.parse_args()
    app = application(os.environ["VENDOR_URL"])
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning", access_log=False)
