"""Bodies of answers that a transport hands on: one whose end ends a permit, one that can be read twice."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from fuseboard.agent import Agent
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit

#: The longest answer that is read before its caller does: to find its code, or to make another attempt.
MOST_BYTES = 65_536


class Body:
    """The body of a good answer. The permit ends when the body ends."""

    def __init__(self, stream: Any, agent: Agent | BlockingAgent, permit: Permit, elapsed_s: float) -> None:
        self.stream = stream
        self._agent, self._permit, self._elapsed_s = agent, permit, elapsed_s

    async def parts_async(self) -> AsyncIterator[bytes]:
        try:
            async for part in self.stream:
                yield part
        except GeneratorExit:
            raise  # the reader has enough; closing reports a success
        except BaseException as error:
            self._broke(error)
            raise

    def parts(self) -> Iterator[bytes]:
        try:
            yield from self.stream
        except GeneratorExit:
            raise
        except BaseException as error:
            self._broke(error)
            raise

    async def close_async(self) -> None:
        # Reported first: closing may be cancelled, or fail because the connection is already lost.
        self._succeeded()
        await self.stream.aclose()

    def close(self) -> None:
        self._succeeded()
        self.stream.close()

    def _succeeded(self) -> None:
        self._agent.report(self._permit, Outcome.OK, self._elapsed_s)

    def _broke(self, error: BaseException) -> None:
        self._agent.report(self._permit, judge_permitted(self._permit, error)[0])

    def __del__(self) -> None:
        # Never closed: the response was good, and a half-open permit must not wait until it expires. The
        # garbage collector may run in any thread, and anywhere in the loop's.
        if not self._permit.reported:
            agent, permit, elapsed_s = self._agent, self._permit, self._elapsed_s
            agent.soon(lambda: agent.report(permit, Outcome.OK, elapsed_s))


class AsyncKept:
    """A body whose beginning is read. It can be read from its beginning still."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.begun = b""
        self.whole = False
        #: What broke it off. Its reader gets it where it was.
        self.error: Exception | None = None
        self._rest: Any = None

    async def fill(self) -> None:
        """Read at most ``MOST_BYTES``, and close the connection if nothing follows."""
        if self._rest is None:
            self._rest = aiter(self.stream)
        try:
            while not self._ended and len(self.begun) < MOST_BYTES:
                self.begun += await anext(self._rest)
        except StopAsyncIteration:
            self.whole = True
            await self.stream.aclose()
        except Exception as error:
            self.error = error
            with suppress(Exception):  # the connection is already lost
                await self.stream.aclose()
        except BaseException:
            await self.stream.aclose()
            raise

    async def parts_async(self) -> AsyncIterator[bytes]:
        yield self.begun
        if self.error is not None:
            raise self.error
        if not self.whole:
            async for part in self._rest:
                yield part

    async def close_async(self) -> None:
        if not self._ended:
            await self.stream.aclose()

    @property
    def _ended(self) -> bool:
        return self.whole or self.error is not None


class Kept:
    """The same for threads."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.begun = b""
        self.whole = False
        self.error: Exception | None = None
        self._rest: Any = None

    def fill(self) -> None:
        if self._rest is None:
            self._rest = iter(self.stream)
        try:
            while not self._ended and len(self.begun) < MOST_BYTES:
                self.begun += next(self._rest)
        except StopIteration:
            self.whole = True
            self.stream.close()
        except Exception as error:
            self.error = error
            with suppress(Exception):
                self.stream.close()
        except BaseException:
            self.stream.close()
            raise

    def parts(self) -> Iterator[bytes]:
        yield self.begun
        if self.error is not None:
            raise self.error
        if not self.whole:
            yield from self._rest

    def close(self) -> None:
        if not self._ended:
            self.stream.close()

    @property
    def _ended(self) -> bool:
        return self.whole or self.error is not None
