"""T14: Redis answers after 50 ms. Decisions do not wait for it."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import redis.asyncio

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Limit, Policy, Tier, Tuning
from fuseboard.contract.words import Mode
from tests.agents.servers import configured, running
from tools.experiments.chart import Chart
from tools.experiments.result import Result, ms, quantile

DELAY_S, PER_S, SECONDS, QUIET_S = 0.050, 100.0, 6.0, 1.0
TUNING = Tuning()
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(
        Tier(name="free", quotas=(Limit(name="requests", limit=1_000_000, window_ms=60_000, burst=1000),)),
    ),
    tuning=TUNING,
)


class DelayingProxy:
    """Passes bytes on in order, each ``delay_s`` later."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.delay_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        for one, other, delayed in ((reader, back, False), (there, writer, True)):
            task = asyncio.ensure_future(self._pump(one, other, delayed=delayed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delayed: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        try:
            while data := await reader.read(65_536):
                # Later bytes must not overtake earlier ones when the delay ends.
                due = max(due, loop.time() + (self.delay_s if delayed else 0.0))
                loop.call_at(due, _write, writer, data)
        finally:
            writer.close()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)


def slow_redis() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder))
        valkey.start()
        try:
            return asyncio.run(_play(valkey.url))
        finally:
            valkey.stop()


async def _play(url: str) -> Result:
    proxy = DelayingProxy(urlsplit(url).port or 0)
    async with proxy.running() as port:
        slow_url = url.replace(f":{urlsplit(url).port}/", f":{port}/")
        async with running(slow_url, "pod-1", configured(POLICY)) as pod:

            async def decide(number: int) -> bool:
                await pod.admission.admit_request(f"tenant-{number % 50}")
                return pod.admission.mode is Mode.LOCAL

            waits = await _ask(decide, proxy)
            mode, cause = pod.admission.mode, pod.admission.mode_cause
            timeouts = pod.counters.wire().store.timeouts
        proxy.delay_s = 0.0
        async with redis.asyncio.Redis.from_url(slow_url) as client:

            async def count(number: int) -> bool:
                await client.incr(f"count-{number % 50}")
                return False

            theirs = await _ask(count, proxy)
    switched = min((at for at, _, alone in waits if alone), default=float("inf"))
    slow = [took for at, took, _ in waits if QUIET_S <= at < switched]
    after = [took for at, took, _ in waits if at >= switched]
    plain = [took for at, took, _ in theirs if at >= QUIET_S]
    deadline_ms = TUNING.store_deadline_us / 1000
    result = Result(
        key="T14",
        title="A slow Redis",
        traffic=f"{PER_S:.0f} requests per s. After {QUIET_S:.0f} s, every answer of Redis comes"
        f" {ms(DELAY_S)} later.",
        expected=f"A decision waits about {deadline_ms:g} ms at most. After {TUNING.store_timeouts}"
        f" timeouts in {TUNING.timeout_window_ms / 1000:g} s the pod decides alone and"
        " waits no more, and it says why.",
        charts=(
            Chart(
                "How long a request waits for its decision",
                "seconds",
                "ms",
                {
                    "with the agent": [(at, took * 1000) for at, took, _ in waits],
                    "a client of Redis": [(at, took * 1000) for at, took, _ in theirs],
                },
                {"deadline": deadline_ms},
                most=80,
            ),
        ),
        table=(
            ("", "p50 while slow", "p95", "afterwards p95", "local from"),
            (
                "with the agent",
                f"{1000 * (quantile(slow, 0.5) or 0):.1f} ms",
                f"{1000 * (quantile(slow, 0.95) or 0):.1f} ms",
                f"{1000 * (quantile(after, 0.95) or 0):.2f} ms",
                f"{switched:.2f} s",
            ),
            ("a client of Redis", ms(quantile(plain, 0.5)), ms(quantile(plain, 0.95)), "-", "-"),
        ),
    )
    half = 1000 * (quantile(slow, 0.5) or 0.0)
    result.check(
        f"Half of the decisions wait {half:.1f} ms at most, near the deadline", half <= deadline_ms + 2
    )
    result.check(
        f"After {timeouts} timeouts the pod is {mode}: {cause}",
        mode is Mode.LOCAL and "timeouts" in cause and timeouts <= TUNING.store_timeouts + 20,
    )
    free = 1000 * (quantile(after, 0.95) or 0.0)
    result.check(f"After that, 95 % of the decisions take {free:.2f} ms at most", bool(after) and free < 2)
    return result


async def _ask(
    ask: Callable[[int], Awaitable[bool]], proxy: DelayingProxy
) -> list[tuple[float, float, bool]]:
    """For each request: its moment, the seconds it waited, and what ``ask`` returned.

    No request waits for another.
    """
    start = monotonic()
    tasks: list[asyncio.Task[tuple[float, float, bool]]] = []

    async def one(number: int) -> tuple[float, float, bool]:
        began = monotonic()
        answer = await ask(number)
        return began - start, monotonic() - began, answer

    for number in range(int(SECONDS * PER_S)):
        await asyncio.sleep(max(0.0, start + number / PER_S - monotonic()))
        if monotonic() - start >= QUIET_S:
            proxy.delay_s = DELAY_S
        tasks.append(asyncio.ensure_future(one(number)))
    return await asyncio.gather(*tasks)
