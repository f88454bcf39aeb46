"""Work on an event or a task that can be delivered again: ``async with agent.once("order-paid", event_id)``.

The block claims the event first, and does the work then. A second delivery raises ``AlreadyDone`` with
what the first one kept, or ``InProgress`` while another process works on it. A block that raises frees its
claim at once. If its process dies, the claim ends with its lease, which a thread renews while the block runs:
so the work is done at least once, and by one process at a time. Exactly once needs the key of the event in
the transaction of the effect: see docs/primitives.md.
"""

import asyncio
import logging
import os
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeAlias
from uuid import UUID

import msgspec

from fuseboard.agent_api.arguments import check_seconds
from fuseboard.agent_api.threads import refuse_loops
from fuseboard.contract.words import is_subject
from fuseboard.errors import AlreadyDone, ClaimLost, InProgress, Misconfigured
from fuseboard.primitives.idempotency import Found, Records, Request, Run

logger = logging.getLogger("fuseboard")

#: An id is text, or a number or UUID, which count as their text.
EventId: TypeAlias = "str | int | UUID"

SHORTEST_KEEP_S, LONGEST_KEEP_S = 60.0, 3 * 86_400.0
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 3_600.0
#: A longer result is refused: it would take the memory of Redis that limits need.
MAX_RESULT = 262_144
_MAX_ID = 1_000


class Once:
    """A claim for one block."""

    def __init__(
        self,
        records: Records,
        event: str,
        event_id: EventId,
        keep_s: float,
        lease_s: float,
    ) -> None:
        self.event, self.event_id = check_once(event, event_id, keep_s, lease_s)
        self._records, self._keep_s, self._lease_s = records, keep_s, lease_s
        self._run: Run | None = None
        self._result = b""
        self._process = os.getpid()

    @property
    def fence(self) -> int:
        """Higher than that of every earlier attempt: write it with the effect; 0 outside the block."""
        return self._run.fence if self._run is not None else 0

    @property
    def valid(self) -> bool:
        """Whether surely no other process works on the event now."""
        return self._run is not None and self._run.valid and os.getpid() == self._process

    def check(self) -> None:
        """Raise ``ClaimLost`` unless the claim is valid: before each write that matters."""
        if not self.valid:
            raise ClaimLost(self.event, self.event_id)

    def keep(self, result: Any) -> None:
        """Give ``result`` to later deliveries, as JSON, when the block ends well."""
        self._result = encoded_result(result)

    def _begin(self) -> Future[Found]:
        if self._run is not None:
            raise Misconfigured("agent.once() is for one block: call it again for each delivery")
        if os.getpid() != self._process:
            raise Misconfigured("this block belongs to the parent process: call agent.once() after the fork")
        request = Request("", "once", self.event, self.event_id, "")
        return self._records.submit(request, self._lease_s, self._keep_s)

    def _take(self, found: Found) -> None:
        if found.word == "done":
            raise AlreadyDone(self.event, self.event_id, *decoded_result(found.answer))
        if found.run is None:
            raise InProgress(self.event, self.event_id, found.left_s)
        self._run = found.run

    def _take_back(self, finding: Future[Found]) -> None:
        """The caller is interrupted before its block begins."""
        if not finding.cancel() and finding.exception() is None:
            self._records.undo(finding.result())

    def _end(self, error: BaseException | None) -> Future[bool] | None:
        """``None``: nothing to wait for."""
        run = self._run
        if run is None or os.getpid() != self._process:
            return None  # a fork inside the block: the parent goes on
        if error is None:
            return self._records.thread.submit(run.done(self._result))
        if isinstance(error, Exception):
            return self._records.thread.submit(_released(run))
        # Cancelled, or the process ends: something that the block began may still go on.
        self._records.thread.call(run.leave)
        return None

    def _ended(self, kept: bool, error: BaseException | None) -> None:
        self._run = None
        if not kept and error is None:
            raise ClaimLost(self.event, self.event_id)


class AsyncOnce(Once):
    """``async with``, on any event loop."""

    async def __aenter__(self) -> Self:
        finding = self._begin()
        try:
            found = await asyncio.wrap_future(finding)
        except asyncio.CancelledError:
            self._take_back(finding)
            raise
        self._take(found)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = self._end(error)
        # Shielded: what is done must be known, also when its task is cancelled now.
        kept = ending is None or await asyncio.shield(asyncio.wrap_future(ending))
        self._ended(kept, error)


class BlockingOnce(Once):
    """``with``, in any thread that may block."""

    def __enter__(self) -> Self:
        refuse_loops()
        finding = self._begin()
        try:
            found = finding.result()
        except BaseException:
            self._take_back(finding)
            raise
        self._take(found)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = self._end(error)
        self._ended(ending is None or ending.result(), error)


def check_once(event: object, event_id: object, keep_s: object, lease_s: object) -> tuple[str, str]:
    """The event, and the id as text. Raises ``Misconfigured`` for invalid arguments."""
    if not isinstance(event, str) or not is_subject(event):
        raise Misconfigured(f"the event of once() must be 1 to 200 printable characters, not {event!r:.80}")
    if isinstance(event_id, bool) or not isinstance(event_id, str | int | UUID):
        raise Misconfigured(
            f"the id of an event must be text, an integer or a UUID, not {type(event_id).__name__}: make one"
            " with fuseboard.idempotency_key(...)"
        )
    text = str(event_id)
    if not text or len(text) > _MAX_ID or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise Misconfigured(
            f"the id of an event must have 1 to {_MAX_ID} valid characters, not {len(text)}: make a short"
            " one with fuseboard.idempotency_key(...)"
        )
    check_seconds("keep_s", keep_s, SHORTEST_KEEP_S, LONGEST_KEEP_S)
    check_seconds("lease_s", lease_s, SHORTEST_LEASE_S, LONGEST_LEASE_S)
    return event, text


def encoded_result(result: Any) -> bytes:
    """Encode the result as JSON. Raises ``Misconfigured`` if JSON does not have it, or it is too long."""
    try:
        encoded = msgspec.json.encode(result)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise Misconfigured(f"keep() takes what JSON can express: {error}") from None
    if len(encoded) > MAX_RESULT:
        raise Misconfigured(
            f"a kept result has at most {MAX_RESULT:,} bytes, not {len(encoded):,}: keep a reference to it"
        )
    return encoded


def decoded_result(answer: bytes) -> tuple[Any, bool]:
    """The result, and whether one was kept that can be read."""
    if not answer:
        return None, False
    try:
        return msgspec.json.decode(answer), True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Every pod of the environment can write to Redis.
        logger.warning("once.unreadable: %s; the event is done, without a result", error)
        return None, False


async def _released(run: Run) -> bool:
    await run.release()
    return True
