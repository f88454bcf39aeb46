"""A dependency in virtual time, and an agent that counts what its calls hold."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from random import Random
from types import TracebackType
from typing import Any, TypeVar

import pytest

from fuseboard.agent_api.retry_api import RetryArguments, async_retrying
from fuseboard.agent_api.retrying import Retrying
from fuseboard.calling import deadline
from fuseboard.calling.retries import Capacity, Retries
from fuseboard.contract.protection import Observe, PodProtection, Retry
from fuseboard.contract.words import Jitter
from fuseboard.decision import Decision, Permit
from tests.virtual_loop import VirtualLoop

T = TypeVar("T")

RETRY = Retry(idempotent=True)
NO_FLOOR = Retry(idempotent=True, floor_milli=0)
ALWAYS = Retry(idempotent=True, jitter=Jitter.NONE)
DOWN = ConnectionRefusedError("down")


def now() -> float:
    return asyncio.get_running_loop().time()


def play(main: Coroutine[Any, Any, T]) -> T:
    """In virtual time, in which deadlines pass too."""
    with pytest.MonkeyPatch.context() as patched, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        patched.setattr(deadline, "monotonic", runner.get_loop().time)
        return runner.run(main)


class HttpError(Exception):
    """As a vendor's client raises it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.headers = {name.replace("_", "-"): text for name, text in headers.items()}


class World:
    """One pod. ``script`` has what happens to each attempt in turn: an error, or ``None`` for an answer."""

    def __init__(
        self,
        *script: Exception | None,
        retry: Retry | None = None,
        protection: PodProtection | None = None,
        clock: Callable[[], float],
        seed: int = 7,
        takes_s: float = 0.0,
        warm: int = 100,
    ) -> None:
        self.script = list(script)
        self.retry = retry
        self.capacity = Capacity()
        self.clock = clock
        self.takes_s = takes_s
        #: When each attempt was sent.
        self.sent: list[float] = []
        #: Attempts that hold a slot now, and how often one was held while somebody waited.
        self.held = 0
        #: Refusals of the next attempts, before they are sent.
        self.refusals: dict[int, Exception] = {}
        self.live_servers = 1
        self.retries = Retries(
            settings=lambda _: self.retry,
            protection=lambda: protection,
            now_us=lambda: int(clock() * 1_000_000),
            live_servers=lambda: self.live_servers,
            capacity=lambda _: self.capacity,
            clock=clock,
            random=Random(seed),
        )
        for _ in range(warm):
            self.retries.part("api").budget.first_call(clock())

    def retrying(self, arguments: RetryArguments) -> Retrying:
        async def find() -> "World":
            return self

        return async_retrying("api", find, arguments)

    async def use(self, **arguments: Any) -> str:
        """One call, with attempts."""
        async for attempt in self.retrying(arguments):  # type: ignore[arg-type]
            async with attempt:
                await self.send()
                return f"answer {attempt.num}"
        raise AssertionError("the last attempt returns or raises")

    async def send(self) -> None:
        self.sent.append(self.clock())
        await asyncio.sleep(self.takes_s)
        happens = self.script.pop(0) if self.script else None
        if happens is not None:
            raise happens

    @property
    def call(self) -> Callable[..., AbstractAsyncContextManager[Permit]]:
        return lambda dependency, **_: Slot(self, dependency)


class Slot:
    """Admits an attempt and bounds it, as ``Agent.call`` does."""

    def __init__(self, world: World, dependency: str) -> None:
        self._world, self._dependency = world, dependency

    async def __aenter__(self) -> Permit:
        await asyncio.sleep(0)
        if (refusal := self._world.refusals.pop(len(self._world.sent), None)) is not None:
            raise refusal
        self._world.held += 1
        self._timeout = asyncio.timeout(deadline.bounded(30.0))
        await self._timeout.__aenter__()
        return Permit(made=Decision(allowed=True), dependency=self._dependency, generation=0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._world.held -= 1
        return await self._timeout.__aexit__(kind, error, trace)


OBSERVED = PodProtection(observe=Observe(retry_until_us=2**52))
