"""Traffic of the tenants: a bounded stream of calls to the pods, which rises and falls.

Calls are made on time, whether or not earlier ones were answered, as real customers do. Above a
fixed number in flight they are dropped and counted, so that calls never pile up here.
``GET /figures`` returns the results; ``DELETE /figures`` resets them.
Run: ``python -m tools.demo.load --port N --per-pod 30 URL URL URL``.
"""

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
from fastapi import FastAPI, Response

from fuseboard.contract.words import CallTier
from tools.demo.scenario import DEPENDENCIES, OUTBOX, STRANGER, TENANTS, Dependency
from tools.demo.serving import serve

#: Calls in flight per pod; more are dropped.
MAX_AT_ONCE = 60

RECEIPTS = "/receipts"
#: Of the calls to the mail relay, those that can wait.
_RECEIPTS = 0.3
_TICK_S = 0.02


class Account(msgspec.Struct):
    """Responses of one pod since the last reset."""

    calls: int = 0
    #: Responses by status.
    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    #: Calls without a response, and the last error.
    unanswered: int = 0
    error: str = ""
    dropped: int = 0
    #: Calls that a decision admits. Answered receipts are apart: a submit waits until Redis has the job.
    slowest_ms: float = 0.0
    total_ms: float = 0.0
    receipts: int = 0
    slowest_receipt_ms: float = 0.0

    @property
    def answered(self) -> int:
        return sum(self.statuses.values())


class Traffic:
    def __init__(self, pods: list[str], per_pod: float) -> None:
        self.per_pod = per_pod
        self.clients = {url: httpx.AsyncClient(base_url=url, timeout=5.0) for url in pods}
        self.accounts = {url: Account() for url in pods}
        self._under_way: set[asyncio.Task[None]] = set()

    def forget(self) -> None:
        self.accounts = {url: Account() for url in self.clients}

    async def run(self) -> None:
        """Make calls until cancelled; each tick makes as many as are due, at random."""
        began = last = time.monotonic()
        async with asyncio.TaskGroup() as calls:
            while True:
                await asyncio.sleep(_TICK_S)
                now = time.monotonic()
                for tenant in (*TENANTS, STRANGER):
                    per_second = self.per_pod * len(self.clients) * tenant.share_at(now - began)
                    # After a pause of this process, missed calls are not made up for.
                    for _ in range(_by_chance(per_second * min(now - last, 0.2))):
                        self._begin(calls, tenant.key)
                last = now

    def _begin(self, calls: asyncio.TaskGroup, tenant: str) -> None:
        url = random.choice(list(self.clients))
        if len(self._under_way) >= MAX_AT_ONCE * len(self.clients):
            self.accounts[url].dropped += 1
            return
        task = calls.create_task(self._call(url, tenant))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _call(self, url: str, tenant: str) -> None:
        wanted = random.choices(DEPENDENCIES, [dependency.share for dependency in DEPENDENCIES])[0]
        account = self.accounts[url]
        began = time.perf_counter()
        account.calls += 1
        method, path = _request(wanted)
        try:
            answer = await self.clients[url].request(method, path, headers={"X-Tenant": tenant})
        except httpx.HTTPError as error:
            account.unanswered += 1
            account.error = repr(error)
            return
        took_ms = (time.perf_counter() - began) * 1000
        status = str(answer.status_code)
        account.statuses[status] = account.statuses.get(status, 0) + 1
        if path == RECEIPTS:
            account.receipts += 1
            account.slowest_receipt_ms = max(account.slowest_receipt_ms, took_ms)
        else:
            account.total_ms += took_ms
            account.slowest_ms = max(account.slowest_ms, took_ms)


def _request(wanted: Dependency) -> tuple[str, str]:
    if wanted.name == OUTBOX and random.random() < _RECEIPTS:
        return "POST", RECEIPTS
    if not wanted.by_tier:
        return "GET", f"/{wanted.name}"
    return "GET", f"/guarded/{wanted.name}?tier={random.choice(list(CallTier))}"


def _by_chance(expected: float) -> int:
    whole = int(expected)
    return whole + (random.random() < expected - whole)


def application(traffic: Traffic) -> FastAPI:
    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(traffic.run())
        yield
        work.cancel()
        for client in traffic.clients.values():
            await client.aclose()

    app = FastAPI(lifespan=working, openapi_url=None)

    @app.get("/figures")
    async def figures() -> Response:
        body = msgspec.json.encode(traffic.accounts)
        return Response(body, media_type="application/json")

    @app.delete("/figures")
    async def forget() -> None:
        traffic.forget()

    return app


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--per-pod", type=float, default=30.0, help="calls per second")
    arguments.add_argument("pods", nargs="+")
    serve(lambda given: application(Traffic(given.pods, given.per_pod)), parser=arguments)
