"""Whether Redis can be trusted, and therefore the mode of this pod.

::

    shared --(3 failures in 5 s, or 100 missed deadlines in 10 s, or 3 and no answer for 5 s)--> local
    local --(a background probe is answered)--> ramping --(30 s)--> shared
    ramping --(any of the above)--> local

All figures come from the tuning of the policy. Calls never probe: one background task does. A Cluster
with one node at fault keeps its mode, see ``fuseboard.store.cluster_store``.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic

import hiredis

from fuseboard.cancellation import STOP_S, stop_tasks, wait_for_event
from fuseboard.contract import keys
from fuseboard.contract.policy import Tuning
from fuseboard.contract.words import Mode
from fuseboard.store.store import ConnectionLostError, FunctionMissingError, NotServedError, Reply, Store
from fuseboard.store.store_clock import StoreClock

log = logging.getLogger("fuseboard.store")

#: The shared part of the traffic when a ramp begins.
RAMP_START = 0.1

#: After a lost connection, the first probe comes at once: a failover or a short fault of a proxy is no
#: outage. While connections keep breaking, each probe comes this many times later, up to the usual interval.
FIRST_PROBE_S = 0.01
NEXT_PROBE_FACTOR = 4

#: Pods come back at different moments, over at most this time.
RETURN_SPREAD_S = 1.0

#: The timeout of a probe, including the connection. Nothing waits for it.
PROBE_TIMEOUT_S = 1.0
_NOT_CONNECTED = "not connected yet"


class StoreHealth:
    """Counts failures, decides the mode, and reconnects to Redis in the background."""

    def __init__(
        self,
        *,
        store: Store,
        environment: str,
        tuning: Callable[[], Tuning],
    ) -> None:
        self._store = store
        self._environment = environment
        self._tuning = tuning
        self._failures: deque[float] = deque(maxlen=1000)
        self._timeouts: deque[float] = deque(maxlen=10_000)
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        #: Set once Redis has answered for the first time, or has not.
        self.tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The first missed deadline since Redis last answered, by the monotonic clock.
        self._silent_since: float | None = None
        self._connected_at = 0.0
        self._broke_soon = 0
        self._ramp_ends = 0.0
        self._ramp_length = 1.0
        self.mode: Mode = Mode.LOCAL
        self._cause = _NOT_CONNECTED
        self.since = monotonic()
        self._clock = StoreClock()
        #: Called when the mode has changed, or when a part of the store fails or recovers.
        self.on_change: Callable[[], None] = lambda: None
        #: Whether Redis gets its traffic back by a ramp. An explanation sends it none, and writes nothing.
        self.ramps = True
        #: Awaited when Redis answers again, before anything is spent in it.
        self.before_ramp: Callable[[], Awaitable[None]] = _nothing

    @property
    def usable(self) -> bool:
        """Whether a decision may ask Redis at all."""
        return self.mode is not Mode.LOCAL and self._store.connected

    @property
    def cause(self) -> str:
        """Why this mode. When only a part of the store is unavailable: which part, and why."""
        return (self.mode is not Mode.LOCAL and self._store.trouble) or self._cause

    @property
    def shared_part(self) -> float:
        """The part of the traffic, and of each limit, that Redis decides: 0 local, 0.1 to 1 ramping, 1
        shared.
        """
        if self.mode is Mode.SHARED:
            return 1.0
        if self.mode is Mode.LOCAL:
            return 0.0
        left = self._ramp_ends - monotonic()
        if left <= 0:
            self._change(Mode.SHARED, "the ramp is over")
            return 1.0
        return max(RAMP_START, 1.0 - (1.0 - RAMP_START) * left / self._ramp_length)

    @property
    def rounded_shared_part(self) -> float:
        """The shared part, from 0.0 to 1.0 in steps of 0.1: arguments of calls rarely change in a ramp."""
        return int(self.shared_part * 10 + 1e-9) / 10

    @property
    def local_part(self) -> float:
        """The part of each limit that pods may spend locally now.

        In local mode all of it, and during a ramp the rest. In shared mode all of it too: for a single
        call that Redis did not answer in time, the pod's share is the best estimate.
        """
        return (1.0 - self.rounded_shared_part) or 1.0

    def start(self) -> None:
        self._store.on_lost(self._connection_lost)
        self._store.on_news(self._on_news)
        self._task = asyncio.get_running_loop().create_task(self._keep_connected(), name="fuseboard-store")

    async def stop(self) -> None:
        task, self._task = self._task, None
        try:
            await stop_tasks(task, within_s=STOP_S)
        finally:
            await self._store.close()

    def answered(self, now_us: int) -> None:
        """Redis answered, and ``now_us`` is its time."""
        self._silent_since = None
        self._clock.learn(now_us)

    def store_time_us(self) -> int:
        """The time of Redis; 0 before its first answer."""
        return self._clock.now_us()

    def decided_at(self, now_us: int, sent_at: float) -> float:
        """When Redis decided what it answered with its time ``now_us``, by the monotonic clock.

        Never before the question was sent: in a Cluster, the clocks of nodes differ.
        """
        passed_s = (self.store_time_us() - now_us) / 1_000_000
        return max(sent_at, monotonic() - max(0.0, passed_s))

    def failed(self, cause: str) -> None:
        """Redis answered with an error, or the connection broke."""
        tuning = self._tuning()
        if self._count(self._failures, tuning.failure_window_ms, 1) >= tuning.store_failures:
            self._trip(
                f"{tuning.store_failures} failures in {tuning.failure_window_ms / 1000:g} s, last: {cause}"
            )

    def missed(self, calls: int) -> None:
        """This many calls got no answer before their deadline.

        A late answer is an answer. Redis that answers nothing is down for a pod with few calls, too.
        """
        tuning = self._tuning()
        timeouts = self._count(self._timeouts, tuning.timeout_window_ms, calls)
        if timeouts >= tuning.store_timeouts:
            self._trip(f"{tuning.store_timeouts} timeouts in {tuning.timeout_window_ms / 1000:g} s")
        elif self._silent_since is None:
            self._silent_since = monotonic()
        elif timeouts >= tuning.store_failures:
            silent_s = monotonic() - self._silent_since
            if silent_s > tuning.failure_window_ms / 1000:
                self._trip(f"no answer for {silent_s:.0f} s, {timeouts} timeouts")

    @staticmethod
    def _count(moments: deque[float], window_ms: int, times: int) -> int:
        now = monotonic()
        moments.extend([now] * times)
        while moments and moments[0] < now - window_ms / 1000:
            moments.popleft()
        return len(moments)

    def _connection_lost(self, error: Exception | None) -> None:
        self.failed(str(error or "the server closed the connection"))
        self._wake.set()

    def _on_news(self) -> None:
        """The store has noticed a change on its own."""
        self._news.set()
        if self.mode is not Mode.LOCAL:
            self.on_change()

    def _trip(self, cause: str) -> None:
        if self.mode is not Mode.LOCAL and self._store.isolate(self._tuning().store_deadline_us / 1_000_000):
            self._failures.clear()
            self._timeouts.clear()
            self._silent_since = None
        else:
            self._go_local(cause)

    def _go_local(self, cause: str) -> None:
        if self.mode is not Mode.LOCAL:
            self._change(Mode.LOCAL, cause)
        self._wake.set()

    def _change(self, mode: Mode, cause: str) -> None:
        # A start is not news. What follows is, until Redis answers reliably.
        level = logging.INFO if self._cause == _NOT_CONNECTED and mode is Mode.SHARED else logging.WARNING
        log.log(level, "store.mode %s, was %s: %s", mode, self.mode, cause)
        self.mode, self._cause, self.since = mode, cause, monotonic()
        self._silent_since = None
        self._failures.clear()
        self._timeouts.clear()
        self.on_change()

    async def _keep_connected(self) -> None:
        """The only code that connects and probes. Runs until ``stop``."""
        first = True
        while True:
            if self.mode is not Mode.LOCAL and self._store.connected:
                await self._until_something_broke()
                continue
            try:
                await self._probe()
            except (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError) as error:
                # A socket that lost a probe may never work again: the next probe opens a new one.
                await self._store.drop()
                self._go_local(f"{type(error).__name__}: {error}".rstrip(": "))
                if isinstance(error, FunctionMissingError):
                    # Nothing but an upgrade or a worker ends this, so it matters more than the first cause.
                    self._cause = str(error)
                elif first:
                    self._cause = f"never reached: {_text_of(error)}"
                first = False
                self.tried.set()
                await self._pause()
                continue
            await self._come_back(first)
            first = False
            self.tried.set()

    async def _until_something_broke(self) -> None:
        self._wake.clear()
        await self._wake.wait()
        # A broken connection is probed at once. A slow Redis gets the usual interval.
        if self._store.connected:
            await self._pause()
        else:
            await asyncio.sleep(self._look_again_s())

    def _look_again_s(self) -> float:
        """The pause after a broken connection. A fleet whose connections all break must not reconnect in a
        storm.
        """
        interval = self._interval()
        lasted = monotonic() - self._connected_at
        self._broke_soon = 0 if lasted > interval else self._broke_soon + 1
        return min(interval, FIRST_PROBE_S * float(NEXT_PROBE_FACTOR ** min(self._broke_soon, 10)))

    async def _probe(self) -> None:
        if not self._store.connected:
            await self._store.connect(PROBE_TIMEOUT_S)
            self._connected_at = monotonic()
        reply = await self._store.call("TIME", timeout=PROBE_TIMEOUT_S)
        now_us = _time_in(reply)
        if now_us is None:
            raise ConnectionLostError(f"TIME was answered with {reply!r:.100}")
        self.answered(now_us)

    async def _come_back(self, first: bool) -> None:
        """Redis answers. A start needs no ramp, and neither does a reconnect during shared mode."""
        if self.mode is not Mode.LOCAL:
            return
        if first or not self.ramps:
            self._change(Mode.SHARED, "connected")
            return
        # All pods notice at the same moment. They report one after the other.
        await asyncio.sleep(random.uniform(0, min(RETURN_SPREAD_S, self._interval() / 5)))
        await self.before_ramp()
        try:
            begun = await self._shared_ramp_start()
        except (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError) as error:
            self._cause = f"answers, but: {_text_of(error)}"
            await self._pause()
            return
        self._ramp_length = self._tuning().ramp_ms / 1000
        elapsed = max(0.0, (self.store_time_us() - begun) / 1_000_000)
        self._ramp_ends = monotonic() + max(0.0, self._ramp_length - elapsed)
        self._change(Mode.RAMPING, "Redis answers again")
        asyncio.get_running_loop().call_later(self._ramp_length, self._finish_ramp)

    def _finish_ramp(self) -> None:
        """End the ramp in time even when no call asks for the mode."""
        if self.mode is Mode.RAMPING and monotonic() >= self._ramp_ends:
            self._change(Mode.SHARED, "the ramp is over")

    async def _shared_ramp_start(self) -> int:
        """All pods that come back together ramp together: the time of the first one counts."""
        key, length = keys.ramp(self._environment), self._tuning().ramp_ms
        try:
            await self._store.call("SET", key, self.store_time_us(), "NX", "PX", length)
            begun = await self._store.call("GET", key)
        except NotServedError:
            return self.store_time_us()  # only the node of this key is missing: each pod ramps alone
        return int(begun) if isinstance(begun, bytes) and begun.isdigit() else self.store_time_us()

    async def _pause(self) -> None:
        """Wait until the next probe is due, or until the store expects it to succeed."""
        try:
            await wait_for_event(self._news, self._interval())
        finally:
            self._news.clear()

    def _interval(self) -> float:
        return self._tuning().probe_interval_ms / 1000 * random.uniform(0.8, 1.2)


async def _nothing() -> None:
    """Nothing needs to happen before a ramp."""


def _text_of(error: Exception) -> str:
    """A timeout has no text, and is named by its type."""
    return str(error) or type(error).__name__


def _time_in(reply: Reply) -> int | None:
    """The microseconds in a reply to ``TIME``; ``None`` for another reply, because any server may be
    there.
    """
    match reply:
        case [bytes(seconds), bytes(microseconds)] if seconds.isdigit() and microseconds.isdigit():
            # No clock has more digits than this.
            return int(seconds) * 1_000_000 + int(microseconds) if len(seconds + microseconds) <= 20 else None
    return None
