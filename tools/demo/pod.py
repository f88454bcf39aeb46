"""A pod of the shop: a FastAPI service with the agent, written as any service would be.

A tenant calls it and it calls a vendor; when a call to the vendor is refused, it uses a fallback.
``/guarded/<dependency>`` also has retries, a tier, and fallbacks; ``POST /receipts`` submits a job to a
backlog, in which every pod works. ``POST /strain`` is for the demo.
Run: ``python -m tools.demo.pod --port N``, with ``VENDOR_URL`` and the agent's
``FUSEBOARD_*`` variables set.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, HTTPException, Query, Request, Response
from starlette.middleware.base import RequestResponseEndpoint

import fuseboard
from fuseboard import Cached, Default
from fuseboard.backlog import Job
from fuseboard.contract.words import CallTier
from fuseboard.integrations.asgi import FuseboardMiddleware, subject_of
from fuseboard.integrations.httpx import GuardedTransport
from tools.demo.scenario import DEPENDENCIES, OUTBOX
from tools.demo.serving import serve

#: The fallback answer while the vendor is not called.
INSTEAD = {dependency.name: dependency.fallback for dependency in DEPENDENCIES}
#: For how long the last result may be used again.
FRESH_S = 3.0


def tenant_of(scope: MutableMapping[str, Any]) -> str | None:
    """The tenant that a request names in its header; health checks and the demo itself have no tenant."""
    if scope["path"] in ("/healthz", "/strain"):
        return None
    return str(dict(scope["headers"]).get(b"x-tenant", b"").decode("latin-1"))


def customer_of(scope: MutableMapping[str, Any]) -> fuseboard.Subject | None:
    """Who asks and for what, so that the page of refusals displays endpoints; not of health checks."""
    return None if tenant_of(scope) is None else subject_of(scope)


def application(vendor_url: str) -> FastAPI:
    agent = fuseboard.from_env()
    vendors = {
        name: httpx.AsyncClient(
            base_url=f"{vendor_url}/{name}", transport=GuardedTransport(agent, dependency=name), timeout=2.0
        )
        for name in INSTEAD
    }

    #: For calls that the code guards itself.
    plain = httpx.AsyncClient(timeout=2.0)
    straining: list[asyncio.Task[None]] = []
    #: When each vendor answered well the last time.
    last_good: dict[str, float] = {}

    def stored(dependency: str) -> tuple[str, float] | None:
        at = last_good.get(dependency)
        return None if at is None else ("the result of the last time", time.monotonic() - at)

    chains = {
        name: agent.fallback(name, [Cached(partial(stored, name), max_age_s=FRESH_S), Default(instead)])
        for name, instead in INSTEAD.items()
    }

    # An outage of the relay takes minutes, not tries.
    outbox = agent.backlog(OUTBOX, max_tries=50)

    async def send_receipt(job: Job) -> None:
        answer = await plain.post(f"{vendor_url}/{OUTBOX}/call", content=job.payload)
        answer.raise_for_status()

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for vendor in (*vendors.values(), plain):
                await stack.enter_async_context(vendor)
            sending = asyncio.create_task(outbox.work(send_receipt, workers=2))
            yield
            outbox.stop()
            await sending
        for task in straining:
            task.cancel()

    app = FastAPI(lifespan=running, openapi_url=None)
    app.add_middleware(FuseboardMiddleware, agent=agent, tenant=tenant_of, subject=customer_of)

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

    @app.get("/guarded/{dependency}")
    async def serve_guarded(
        dependency: str, tier: CallTier = CallTier.STANDARD
    ) -> dict[str, str | int | bool]:
        """The same with a tier, retries, and a chain of fallbacks."""
        if dependency not in INSTEAD:
            raise HTTPException(404)
        attempts = 0

        async def ask() -> str:
            nonlocal attempts
            async for attempt in agent.retrying(dependency, tier=tier, deadline_s=5.0):
                async with attempt:
                    attempts += 1
                    answer = await plain.get(f"{vendor_url}/{dependency}/call")
                    answer.raise_for_status()
            last_good[dependency] = time.monotonic()
            return "the requested result"

        found = await chains[dependency].run(ask)
        return {
            "got": found.value,
            "source": found.source,
            "reason": found.reason,
            "cached": found.is_cached,
            "attempts": attempts,
        }

    @app.post("/receipts")
    async def send_later() -> dict[str, str | None]:
        """Submit a receipt. It is sent when breaker and limits of the relay admit that, by any pod."""
        try:
            submitted = await outbox.submit(b"a receipt")
        except fuseboard.Refused as refused:
            # The customer can read it on the account page.
            return {"got": INSTEAD[OUTBOX], "refused_because": refused.decision.reason}
        return {"receipt": submitted.id}

    @app.get("/receipts/{receipt}")
    async def receipt_state(receipt: str) -> dict[str, str]:
        return {"status": (await outbox.result(receipt)).status}

    @app.post("/strain")
    async def strain(seconds: Annotated[int, Query(ge=1, le=60)]) -> dict[str, int]:
        """Keep the event loop busy, as a computation in the wrong place does, but for short pauses."""

        async def work() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pause = time.monotonic() + 0.6
                while time.monotonic() < pause:
                    pass
                await asyncio.sleep(0.05)

        straining.append(asyncio.create_task(work()))
        return {"seconds": seconds}

    return app


if __name__ == "__main__":
    serve(lambda _: application(os.environ["VENDOR_URL"]))
