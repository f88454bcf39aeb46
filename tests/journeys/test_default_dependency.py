"""What an admin gets who adds a dependency and changes nothing: its calls, as a service makes them.

``-s`` prints the figures. The vendor is a real server, and the client a guarded client of httpx.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import redis

import fuseboard
from fuseboard.errors import Refused
from fuseboard.integrations.httpx import GuardedTransport
from tests.waiting import eventually
from tools.demo.browser import Browser
from tools.demo.processes import Processes
from tools.demo.seed import Seeded

NEW = "/dependencies/new"
KINDS = ("llm", "external", "internal", "database")


def say(figures: str) -> None:
    sys.stdout.write(f"\n{figures}\n")


class Vendor:
    """Answers with ``status`` after ``delay_s``, once ``answers`` is set, and counts what it sees at once."""

    def __init__(self) -> None:
        self.status, self.delay_s, self.parts = 200, 0.0, 1
        self.requests = self.now = self.most = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        self.requests += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.delay_s)
        await self.answers.wait()
        writer.write(f"HTTP/1.1 {self.status} X\r\nConnection: close\r\n".encode())
        writer.write(b"Content-Type: text/event-stream\r\n\r\n")
        for part in range(self.parts):
            writer.write(f"data: {part}\n\n".encode())
            await writer.drain()
            if part < self.parts - 1:
                await asyncio.sleep(0.4)
        self.now -= 1
        writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Vendor, str]]:
    vendor = Vendor()
    server = await asyncio.start_server(vendor.serve, "127.0.0.1", 0, backlog=1024)
    async with server:
        yield vendor, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def test_dependencies_that_are_added_with_defaults(
    control_plane: Processes, seeded: Seeded, limits: redis.Redis, redis_url: str, tmp_path: Path
):
    browser = Browser(control_plane.by_name["web"].url)
    browser.log_in("admin", seeded.logins["admin"])
    for kind in KINDS:
        form = browser.form(NEW, "name", "kind", "reason")
        answer = browser.send(form, **{"name": f"new-{kind}", "kind": kind}, reason="We call it now")
        assert answer.status_code == 200, answer.text
    browser.close()
    settings = fuseboard.AgentSettings(
        redis_url=redis_url,
        url=control_plane.by_name["gateway"].url,
        token=seeded.agent_token,
        service="shop",
        server="shop-1",
        state_dir=tmp_path / "state",
    )
    asyncio.run(play(settings))


async def play(settings: fuseboard.AgentSettings) -> None:
    async with fuseboard.Agent(settings=settings) as agent:
        await eventually(lambda: agent.configuration.snapshot.dependency(f"new-{KINDS[-1]}") is not None)
        for kind in KINDS:
            await play_kind(agent, kind)


async def play_kind(agent: fuseboard.Agent, kind: str) -> None:
    unbounded = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))
    transport = GuardedTransport(agent, dependency=f"new-{kind}", transport=unbounded)
    async with serving() as (vendor, url), httpx.AsyncClient(transport=transport) as client:
        await few_at_once(client, url, vendor, kind)
        await a_stream_of_parts(client, url, vendor, kind)
        await many_at_once(client, url, vendor, kind)
        await limited_by_the_vendor(client, url, vendor, kind)
        await failing(client, url, vendor, kind)


async def call(client: httpx.AsyncClient, url: str, ways: Counter[str]) -> None:
    """Make one call, and count in which way it ended."""
    try:
        ways[str((await client.get(url)).status_code)] += 1
    except Refused as refused:
        ways[str(refused.decision.reason)] += 1


async def outcomes(client: httpx.AsyncClient, url: str, calls: int) -> Counter[str]:
    """How many calls at once ended in which way."""
    ways: Counter[str] = Counter()
    await asyncio.gather(*(call(client, url, ways) for _ in range(calls)))
    return ways


async def few_at_once(client: httpx.AsyncClient, url: str, vendor: Vendor, kind: str) -> None:
    vendor.delay_s = 0.3
    ways = await outcomes(client, url, 30)
    say(f"{kind}: 30 calls at once: {dict(ways)}, {vendor.most} at once")
    # Slots that no other tier uses refuse no call.
    assert ways == {"200": 30}


async def many_at_once(client: httpx.AsyncClient, url: str, vendor: Vendor, kind: str) -> None:
    """The vendor answers nothing before it has all calls that may come to it, and others were refused."""
    vendor.delay_s, vendor.most = 0.0, 0
    vendor.answers.clear()
    ways: Counter[str] = Counter()
    calls = asyncio.gather(*(call(client, url, ways) for _ in range(500)))
    await eventually(lambda: vendor.now == 50 and ways, "50 calls at the vendor, and a refusal")
    vendor.answers.set()
    await calls
    say(f"{kind}: 500 calls at once: {dict(ways)}, {vendor.most} at once")
    assert vendor.most == 50
    assert vendor.most <= ways["200"] < 500
    assert set(ways) <= {"200", "bulkhead_full", "queue_timeout", "local_rate"}


async def a_stream_of_parts(client: httpx.AsyncClient, url: str, vendor: Vendor, kind: str) -> None:
    vendor.delay_s, vendor.parts = 0.0, 4
    async with client.stream("GET", url) as answer:
        parts = [line async for line in answer.aiter_lines() if line]
    vendor.parts = 1
    say(f"{kind}: a stream of 1.2 s: {len(parts)} parts")
    assert len(parts) == 4


async def limited_by_the_vendor(client: httpx.AsyncClient, url: str, vendor: Vendor, kind: str) -> None:
    vendor.delay_s, vendor.status = 0.0, 429
    seen: Counter[str] = Counter()
    for _ in range(6):
        ways = await outcomes(client, url, 1)
        seen += ways
    say(f"{kind}: 6 calls in a row, each answered 429 without a time: {dict(seen)}")
    # A limit of the vendor is no failure of the vendor.
    assert "breaker_open" not in seen
    assert seen["429"] >= 1
    vendor.status = 200

    async def answered() -> bool:
        return (await outcomes(client, url, 1))["200"] == 1

    await eventually(answered, "a call after the limit of the vendor")


async def failing(client: httpx.AsyncClient, url: str, vendor: Vendor, kind: str) -> None:
    vendor.status, before = 503, vendor.requests
    seen: Counter[str] = Counter()
    for _ in range(30):
        ways = await outcomes(client, url, 1)
        seen += ways
    say(f"{kind}: 30 calls in a row to a vendor that fails: {dict(seen)}")
    assert seen["breaker_open"] >= 20
    assert vendor.requests - before == seen["503"]
