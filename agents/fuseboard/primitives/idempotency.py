"""Requests with an ``Idempotency-Key``: whether one ran before, and what was answered.

A request is run at least once, not exactly once: if its process dies, what it did is unknown, so it stays
running until its lease ends, and the next attempt runs it again. Only a key in the transaction of the
effect itself is exact. The algorithm is that of ``lua/idempotency.lua``.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple

from fuseboard.contract import keys
from fuseboard.contract.scripts import IDEMPOTENCY
from fuseboard.errors import StoreUnavailable
from fuseboard.primitives.store_thread import StoreThread
from fuseboard.reporting.primitive_figures import OnceFigures
from fuseboard.reporting.seals import Seals
from fuseboard.store.store import Word

logger = logging.getLogger("fuseboard")

#: The number of a request that was released is remembered for this time.
REMEMBERED_MS = 60_000
#: Answers are kept while Redis uses less than this part of its memory, and new requests begin while it uses
#: less than that part: a full Redis decides no limit, and clients choose how many keys there are.
FULL, NO_MORE = 0.7, 0.85
LOOK_S = 5.0
#: The pause before Redis is asked again, if it cannot be asked.
AGAIN_S = 0.5
#: The clock of Redis may run faster than ours by this part.
DRIFT = 0.01


class Request(NamedTuple):
    """The parts of a request that make two the same, and that detect a mistaken use of one key."""

    caller: str
    method: str
    path: str
    key: str
    fingerprint: str


class Found(NamedTuple):
    """``word`` is run, running, other or done."""

    word: str
    fence: int
    #: running: when the owner's lease ends.
    left_s: float = 0.0
    #: done: the answer, as it was stored; empty when it was not kept.
    answer: bytes = b""
    #: run: to finish it.
    run: "Run | None" = None


class Run:
    """A request that runs in this process, and no other. End it with ``done``, ``release`` or ``leave``."""

    def __init__(self, records: "Records", key: str, owner: str, lease_s: float, keep_s: float) -> None:
        #: A sealed answer belongs to this: the request, and its fingerprint from ``begin`` on.
        self._about = b""
        #: Higher than that of every earlier run: write it with the effect, and refuse lower numbers there.
        self.fence = 0
        self._records = records
        self._key, self._owner = key, owner
        self._lease_s, self._keep_ms = lease_s, int(keep_s * 1000)
        #: Renewed with the lease: a request that takes longer than ``keep_s`` is not forgotten.
        self._running_ms = int(max(keep_s, lease_s) * 1000)
        self._keeper: asyncio.Task[None] | None = None
        self._valid_until = 0.0
        self._lost = False

    @property
    def valid(self) -> bool:
        """Whether surely no other process runs it now."""
        return not self._lost and monotonic() < self._valid_until

    # On the thread of the store

    async def begin(self, fingerprint: str) -> Found:
        thread, sent = self._records.thread, monotonic()
        self._about = f"{self._key}\n{fingerprint}".encode()
        lease_us = int(self._lease_s * 1_000_000)
        full = not await self._records.has_room(NO_MORE)
        # Too late since 1970: finds what is known, and begins nothing.
        not_after_us = 1 if full else thread.not_after_us()
        arguments = (lease_us, self._running_ms, fingerprint, not_after_us)
        word, fence, left_us, answer, _ = await self._ask("begin", *arguments)
        if word == b"late":
            raise StoreUnavailable("its memory is almost full" if full else "the question arrived too late")
        if word != b"run":
            kept, answer = answer, self._records.seals.open(self._about, answer)
            self._records.figures.unsealed += bool(kept) and not answer
            return Found(word.decode(), fence, left_us / 1_000_000, answer)
        self.fence = fence
        self._valid_until = sent + self._lease_s * (1 - DRIFT)
        self._keeper = thread.begin(self._keep(), "idempotency")
        return Found("run", fence, run=self)

    async def done(self, answer: bytes) -> bool:
        """The request succeeded. The caller waits for one question; more follow until the lease ends.

        Returns whether it is stored now, or will be; ``False``: another run may have begun.
        """
        self.leave()
        if answer and not await self._records.has_room(FULL):
            answer = b""
        kept, sealed = self._records.seals.seal(self._about, answer)
        word = "sealed" if sealed else "done"
        try:
            return await self._end(word, self._keep_ms, kept)
        except StoreUnavailable:
            self._records.thread.begin(self._repeat(word, kept), "idempotency")
            return self.valid

    async def release(self) -> None:
        """The request failed, so it can run again."""
        self.leave()
        try:
            await self._end("release", REMEMBERED_MS, b"")
        except StoreUnavailable as error:
            logger.warning("idempotency.not_released: %s; the request can run when its lease ends", error.why)

    def leave(self) -> None:
        """Do not renew it any more. What it did is unknown, so it stays running until its lease ends."""
        if self._keeper is not None:
            self._keeper.cancel()

    async def _keep(self) -> None:
        usual_s = pause_s = self._lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            sent = monotonic()
            try:
                word, *_ = await self._ask("renew", int(self._lease_s * 1_000_000), self._running_ms)
            except StoreUnavailable:
                pause_s = min(usual_s, AGAIN_S)
                continue
            if word != b"ok":
                self._lose()
                return
            self._valid_until, pause_s = sent + self._lease_s * (1 - DRIFT), usual_s

    async def _repeat(self, word: str, answer: bytes) -> None:
        until = monotonic() + self._lease_s
        while monotonic() < until:
            await asyncio.sleep(AGAIN_S)
            try:
                await self._end(word, self._keep_ms, answer)
            except StoreUnavailable:
                continue
            return
        logger.error("idempotency.not_stored fence=%d: the request can run again", self.fence)

    async def _end(self, action: str, keep_ms: int, answer: bytes) -> bool:
        word, *_ = await self._ask(action, 0, keep_ms, answer)
        if word != b"ok":
            self._lose()
        return bool(word == b"ok")

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._records.figures.lost += 1
            logger.error("idempotency.lost fence=%d: another run of this request may have begun", self.fence)

    async def _ask(self, action: str, *arguments: Word) -> list[Any]:
        return await self._records.thread.ask(IDEMPOTENCY, self._key, action, self._owner, *arguments)


class Records:
    """The requests of one agent. Everything runs on the thread of the store: see ``StoreThread.submit``."""

    def __init__(
        self,
        thread: StoreThread,
        environment: str,
        figures: Callable[[], OnceFigures],
        seals: Callable[[], Seals],
    ) -> None:
        self.thread = thread
        self._environment, self._figures, self._seals = environment, figures, seals
        #: The part of the memory of Redis that is used; 0 without a bound.
        self._looked, self._used = -LOOK_S, 0.0

    @property
    def figures(self) -> OnceFigures:
        """The figures of the present run of the agent."""
        return self._figures()

    @property
    def seals(self) -> Seals:
        """The seals of the present run of the agent."""
        return self._seals()

    async def begin(self, request: Request, lease_s: float, keep_s: float) -> Found:
        """Begin the request, or find what became of it. Raises ``StoreUnavailable``."""
        key = keys.idempotency(self._environment, request.caller, request.method, request.path, request.key)
        figures = self.figures
        try:
            found = await Run(self, key, token_hex(8), lease_s, keep_s).begin(request.fingerprint)
        except StoreUnavailable:
            figures.unavailable += 1
            raise
        match found.word:
            case "run":
                figures.begun += 1
            case "done":
                figures.replayed += 1
            case "running":
                figures.running += 1
            case _:
                figures.mismatched += 1
        return found

    def submit(self, request: Request, lease_s: float, keep_s: float) -> Future[Found]:
        """``begin`` for any thread. If the future is cancelled, nothing has begun."""
        return self.thread.submit_undoable(self.begin(request, lease_s, keep_s), self.undo)

    def undo(self, found: Found) -> None:
        """The caller was interrupted before it began what it found."""
        if found.run is not None:
            self.thread.submit(found.run.release())

    async def has_room(self, part: float) -> bool:
        """Whether Redis uses at most this part of its memory; looked up at most every 5 s."""
        if monotonic() - self._looked >= LOOK_S:
            self._looked = monotonic()
            try:
                reply = await self.thread.command("INFO", "memory")
            except StoreUnavailable:
                return True  # nothing will be stored, either
            text = reply.decode() if isinstance(reply, bytes) else ""
            used, most = (_figure(text, name) for name in ("used_memory", "maxmemory"))
            before, self._used = self._used, used / most if most else 0.0
            for full, effect in ((FULL, "answers are not kept"), (NO_MORE, "no new request begins")):
                if before <= full < self._used:
                    logger.warning("idempotency.full: Redis uses %d of %d bytes; %s", used, most, effect)
        return self._used <= part


def _figure(text: str, name: str) -> int:
    found = re.search(rf"^{name}:(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0
