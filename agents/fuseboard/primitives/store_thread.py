"""A connection to Redis on a thread: it renews what a busy event loop of the application would lose.

Only processes that use a lock, an idempotency key, or jobs of a backlog have this thread. It starts on first
use.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import hiredis

from fuseboard.agent_api.threads import settle
from fuseboard.cancellation import run_until_stopped
from fuseboard.contract.scripts import Script
from fuseboard.errors import StoreUnavailable
from fuseboard.settings import OFF
from fuseboard.store import ConnectionLostError, Store, open_store
from fuseboard.store.off_store import REDIS_IS_OFF
from fuseboard.store.pipelined_connection import settles
from fuseboard.store.store import Reply, Word
from fuseboard.store.store_clock import StoreClock

logger = logging.getLogger("fuseboard")

#: How long a connection and an answer may take. A question is too late for Redis after the same time.
CONNECT_S = 1.0
ANSWER_S = 1.0
#: A node of a Cluster that has a question, and has not answered any for this time, is at fault.
SILENT_S = ANSWER_S / 2
#: ``stop`` waits for the thread for at most this time.
STOP_S = 0.3

T = TypeVar("T")
_FAILURES = (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError)


class StoreThread:
    """Any thread may call ``submit`` and ``stop``. Everything else runs on the thread.

    ``simulated`` returns why Redis must not be asked, in a drill; usually nothing.
    """

    def __init__(self, redis_url: str, simulated: Callable[[], str] = lambda: "") -> None:
        self._redis_url = redis_url
        self._store: Store
        self._simulated = simulated
        self._clock = StoreClock()
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: The attempt to connect that questions wait for.
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``question`` on the thread."""
        with self._guard:
            if self._loop is None:
                # Both belong together: parts of a store belong to the loop that they are first used on.
                self._loop, self._store = asyncio.new_event_loop(), open_store(self._redis_url)
                self._thread = threading.Thread(
                    target=run_until_stopped, args=(self._loop,), name="fuseboard-store", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(question, self._loop)

    def submit_undoable(self, question: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> Future[T]:
        """Submit, and ``undo`` an answer that comes after the future was cancelled."""
        answer: Future[T] = Future()

        self.submit(settle(answer, question, undo))
        return answer

    def call(self, what: Callable[[], None]) -> None:
        """Call ``what`` on the thread, soon."""
        with self._guard:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(what)

    async def stop(self) -> None:
        """Disconnect and end the thread. What it renewed ends by itself; ``submit`` starts another one.

        Waits without a thread: at the exit of the process, Python starts no other one.
        """
        with self._guard:
            if self._loop is None:
                return
            # ``submit`` may replace both before the thread has ended.
            loop, store = self._loop, self._store
            self._loop = self._thread = self._connecting = None
        ended = asyncio.run_coroutine_threadsafe(_end(loop, store), loop)
        await asyncio.wait({asyncio.wrap_future(ended)}, timeout=STOP_S)

    # On the thread

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do ``work`` beside other work."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def not_after_us(self) -> int:
        """The store time at which the caller of a question that is sent now has given up; 0 is unknown."""
        now = self._clock.now_us()
        return now and now + int(ANSWER_S * 1_000_000)

    async def ask(self, script: Script, key: str | tuple[str, ...], *arguments: Word) -> list[Any]:
        """The answer of a script whose last number is the time of the store. Raises ``StoreUnavailable``."""
        if why := self._simulated():
            raise StoreUnavailable(why)
        try:
            await self._connect()
            future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            keys = (key,) if isinstance(key, str) else key
            self._store.run(script, tuple(one.encode() for one in keys), arguments, settles(future))
            reply = await self._answer(future)
        except _FAILURES as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from None
        if not isinstance(reply, list) or not reply or not isinstance(reply[-1], int):
            why = (
                str(reply)
                if isinstance(reply, Exception)
                else f"{script.name} was answered with {reply!r:.80}"
            )
            raise StoreUnavailable(why)
        self._clock.learn(reply[-1])
        return reply

    async def command(self, *words: Word) -> Reply:
        """The answer of one command. Raises ``StoreUnavailable``."""
        try:
            await self._connect()
            return await self._answer(self._store.call(*words, timeout=ANSWER_S))
        except _FAILURES as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from None

    async def _connect(self) -> None:
        """All questions that wait for the connection share one attempt, and its failure."""
        if self._redis_url == OFF:
            raise ConnectionRefusedError(REDIS_IS_OFF)
        if self._store.connected:
            return
        loop, connecting = asyncio.get_running_loop(), self._connecting
        # A thread that is about to end may have left its own.
        if connecting is None or connecting.done() or connecting.get_loop() is not loop:
            connecting = loop.create_task(self._store.connect(CONNECT_S), name="fuseboard-store-connect")
            connecting.add_done_callback(_read_error)
            self._connecting = connecting
        # Shielded: a caller that leaves must not end the attempt of the others.
        await asyncio.shield(connecting)

    async def _answer(self, reply: Awaitable[Reply]) -> Reply:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await reply
        except TimeoutError:
            # The server may be frozen, or the connection half-open: the next question opens a new one. On a
            # Cluster, only the node at fault is left: the other nodes have locks and requests of their own.
            if not self._store.isolate(SILENT_S):
                await self._store.drop()
            raise TimeoutError(f"no answer within {ANSWER_S:g} s") from None


def _read_error(connecting: asyncio.Task[None]) -> None:
    """Its callers may all have left: then asyncio would log the error as lost."""
    if not connecting.cancelled():
        connecting.exception()


async def _end(loop: asyncio.AbstractEventLoop, store: Store) -> None:
    try:
        await store.close()
    finally:
        loop.stop()
