"""Bodies of answers that a transport hands on: one whose end ends a permit, one that can be read twice."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from fuseboard.agent import Agent
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling.classification import Verdict
from fuseboard.calling.event_errors import EventErrors, are_events
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.words import Outcome
from fuseboard.decision import Parts, Permit
from fuseboard.integrations.guarded_request import report_verdict

#: The longest answer that is read before its caller does: to find its code, or to make another attempt.
MAX_BYTES = 65_536


#: Content types of answers that come in parts.
_STREAMS = ("event-stream", "ndjson", "jsonl", "json-seq", "stream+json", "eventstream")
#: A timeout of 0 s has other meanings.
MIN_S = 0.001


def is_stream(headers: Mapping[str, str]) -> bool:
    kind = (headers.get("content-type") or "").partition(";")[0].lower()
    return any(kind.endswith(name) for name in _STREAMS)


class Body:
    """The body of a good answer. The permit ends when the body ends, or at an error event in it.

    ``elapsed_s``: how long its headers took. ``late``: makes the error of a part that does not come.
    """

    def __init__(
        self,
        stream: Any,
        agent: Agent | BlockingAgent,
        permit: Permit,
        elapsed_s: float,
        headers: Mapping[str, str],
        late: Callable[[str], Exception],
    ) -> None:
        self.stream = stream
        self._agent, self._permit, self._elapsed_s, self._late = agent, permit, elapsed_s, late
        self._began = monotonic() - elapsed_s
        self._streams = is_stream(headers)
        #: Bytes have come, and of a stream, a part of the answer: comments keep a connection open before it.
        self._begun = self._answered = False
        self._encoded = (headers.get("content-encoding") or "identity").lower() != "identity"
        self._errors = EventErrors() if self._streams and not self._encoded else None

    async def parts_async(self) -> AsyncIterator[bytes]:
        bounds = self._permit.parts if self._streams else None
        parts = self.stream if bounds is None else self._bounded(bounds)
        try:
            async for part in parts:
                if kept := self.look(part):
                    yield kept
            if kept := self.rest():
                yield kept
        except GeneratorExit:
            raise  # the reader has enough; closing reports a success
        except BaseException as error:
            self.broke(error)
            raise

    async def _bounded(self, bounds: Parts) -> AsyncIterator[bytes]:
        """The parts, each in its time. Those of threads have the timeout for reading."""
        parts = aiter(self.stream)
        left_s = bounds.first_s and max(MIN_S, bounds.first_s - self._elapsed_s)
        while True:
            try:
                async with asyncio.timeout(left_s or None) as timer:
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if not timer.expired():
                    raise
                which = "a part" if self._begun else "the first part"
                raise self._late(f"{which} of the streamed answer did not come in time") from None
            yield part
            left_s = bounds.between_s

    def parts(self) -> Iterator[bytes]:
        try:
            for part in self.stream:
                if kept := self.look(part):
                    yield kept
            if kept := self.rest():
                yield kept
        except GeneratorExit:
            raise
        except BaseException as error:
            self.broke(error)
            raise

    async def close_async(self) -> None:
        # Reported first: closing may be cancelled, or fail because the connection is already lost.
        self.ended()
        await self.stream.aclose()

    def close(self) -> None:
        self.ended()
        self.stream.close()

    def look(self, part: bytes) -> bytes:
        """The part for the reader: as it came. An error event ends the permit."""
        if not self._begun and part:
            if self._errors is None and not self._encoded and are_events(part):
                # Its content type does not say so.
                self._errors, self._streams = EventErrors(), True
            self._begun = True
        errors = self._errors
        verdict = errors.feed(part) if errors is not None else None
        if self._streams and not self._answered and (errors is None or errors.begun):
            self._answered, self._elapsed_s = True, monotonic() - self._began
        if verdict is not None:
            self.failed(verdict)
        return part

    def rest(self) -> bytes:
        """The end of the body for the reader, if parts of it were kept back."""
        return b""

    def failed(self, verdict: Verdict) -> None:
        """There is an error event in the answer."""
        report_verdict(self._agent, self._permit, verdict)

    def ended(self) -> None:
        """It is over, or its reader has enough."""
        verdict = self._errors.finish() if self._errors is not None else None
        if verdict is not None:
            self.failed(verdict)
        else:
            self._permit.first_part_s = self._elapsed_s
            self._agent.report(self._permit, Outcome.OK, self._elapsed_s)

    def broke(self, error: BaseException) -> None:
        self._agent.report(self._permit, judge_permitted(self._permit, error)[0])

    def __del__(self) -> None:
        # Never closed: the response was good, and a half-open permit must not wait until it expires. The
        # garbage collector may run in any thread, and anywhere in the loop's.
        if not self._permit.reported:
            agent, permit, elapsed_s = self._agent, self._permit, self._elapsed_s
            agent.soon(lambda: agent.report(permit, Outcome.OK, elapsed_s))


class _AnyKept(ABC):
    """A body whose beginning is read. It can be read from its beginning still."""

    def __init__(self, stream: Any, parts: Any) -> None:
        self.stream = stream
        self.begun = b""
        self.whole = False
        #: The error that interrupted the body. Readers get it at the same position.
        self.error: Exception | None = None
        self._rest = parts

    async def fill(self) -> None:
        """Read at most ``MAX_BYTES``, and close the connection if nothing follows.

        A coroutine, so that it is written once: in threads, ``run_blocking`` runs it.
        """
        if self._ended:
            return
        try:
            while not self.whole and len(self.begun) < MAX_BYTES:
                part = await self._next()
                self.begun += part or b""
                self.whole = part is None
        except Exception as error:
            self.error = error
            with suppress(Exception):  # the connection is already lost
                await self._close()
        except BaseException:
            await self._close()
            raise
        else:
            if self.whole:
                await self._close()

    @abstractmethod
    async def _next(self) -> bytes | None:
        """Read a part; ``None`` at the end."""

    @abstractmethod
    async def _close(self) -> None: ...

    @property
    def _ended(self) -> bool:
        return self.whole or self.error is not None


class AsyncKept(_AnyKept):
    """A kept body for coroutines."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream, aiter(stream))

    async def _next(self) -> bytes | None:
        return await anext(self._rest, None)

    async def _close(self) -> None:
        await self.stream.aclose()

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


class Kept(_AnyKept):
    """A kept body for threads. ``parts`` reads ``stream`` where iterating over it is not the way."""

    def __init__(self, stream: Any, parts: Iterator[bytes] | None = None) -> None:
        super().__init__(stream, iter(stream) if parts is None else parts)

    async def _next(self) -> bytes | None:
        return next(self._rest, None)

    async def _close(self) -> None:
        self.stream.close()

    def parts(self) -> Iterator[bytes]:
        yield self.begun
        if self.error is not None:
            raise self.error
        if not self.whole:
            yield from self._rest

    def close(self) -> None:
        if not self._ended:
            self.stream.close()
