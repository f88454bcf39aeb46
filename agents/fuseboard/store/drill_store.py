"""A store that simulates an outage in a drill: Redis is unavailable, or slower than any deadline.

Nothing above it knows of the drill. Deadlines, failure counts, modes, probes and the ramp are the real
ones, and so is everything that an admin sees. A drill ends by this pod's monotonic clock.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic

from fuseboard.contract.scripts import Script
from fuseboard.contract.sync import Drill
from fuseboard.contract.words import DrillKind
from fuseboard.store.store import NotServedError, OnReply, Reply, Store, Word

log = logging.getLogger("fuseboard.store")

#: How late a question reaches a Redis that is simulated as slow: later than the longest deadline of a fleet.
SLOW_S = 0.1

#: The faults that a drill simulates, in words.
SIMULATED = {DrillKind.GONE: "unavailable", DrillKind.SLOW: "slow"}

_GONE = "a drill: Redis is simulated as unavailable"


class DrillStore:
    """A ``Store`` in front of another; see there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.together = store.together
        self._drill: Drill | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lost: Callable[[Exception | None], None] = lambda _: None
        self._news: Callable[[], None] = lambda: None

    # The drill

    @property
    def drill(self) -> Drill | None:
        """The drill that runs now."""
        return self._drill if self._drill is not None and monotonic() < self._until else None

    def pretend(self, drill: Drill | None, *, asked: float) -> None:
        """Apply the answer to a heartbeat that was sent at ``asked`` (monotonic seconds); ``None`` ends a
        drill.
        """
        until = asked + drill.remaining_ms / 1000 if drill is not None else 0.0
        if drill is None or until <= monotonic():
            if self._drill is not None:
                self._end()
            return
        begins = self._drill is None or self._drill.kind is not drill.kind
        self._drill, self._until = drill, until
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(until - monotonic(), self._end)
        if begins:
            words, seconds = SIMULATED[drill.kind], until - monotonic()
            log.warning("drill.begun: Redis is simulated as %s for %.1f s", words, seconds)
            if drill.kind is DrillKind.GONE:
                self._lost(ConnectionRefusedError(_GONE))
            self._news()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._drill is not None:
            self._drill = None
            log.warning("drill.ended")
            self._news()

    @property
    def _gone(self) -> bool:
        drill = self.drill
        return drill is not None and drill.kind is DrillKind.GONE

    # The store

    @property
    def connected(self) -> bool:
        return self._store.connected and (self._drill is None or not self._gone)

    def serves(self, key: bytes) -> bool:
        return not self._gone and self._store.serves(key)

    @property
    def trouble(self) -> str:
        return self._store.trouble

    def on_lost(self, callback: Callable[[Exception | None], None]) -> None:
        self._lost = callback
        self._store.on_lost(callback)

    def on_news(self, callback: Callable[[], None]) -> None:
        self._news = callback
        self._store.on_news(callback)

    async def connect(self, timeout: float = 1.0) -> None:
        if self._gone:
            raise ConnectionRefusedError(_GONE)
        await self._store.connect(timeout)

    async def drop(self) -> None:
        await self._store.drop()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._store.close()

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        if self._drill is None or (drill := self.drill) is None:
            self._store.run(script, keys, arguments, on_reply)
        elif drill.kind is DrillKind.GONE:
            on_reply(NotServedError(_GONE))
        else:
            # The question itself is late. Redis charges nothing for it, because ``not_after`` has passed.
            later = asyncio.get_running_loop().call_later
            later(SLOW_S, self._store.run, script, keys, arguments, on_reply)

    async def call(self, *command: Word, timeout: float = 1.0) -> Reply:
        drill = self.drill
        if drill is not None and drill.kind is DrillKind.GONE:
            raise ConnectionRefusedError(_GONE)
        if drill is not None:
            raise TimeoutError("a drill: Redis is simulated as slow")
        return await self._store.call(*command, timeout=timeout)

    def isolate(self, deadline_s: float) -> bool:
        return False if self.drill is not None else self._store.isolate(deadline_s)
