"""Messages of some channels of Redis, over a connection of their own."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import hiredis

from fuseboard.cancellation import wait_for_event
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.pipelined_connection import Pipe, open_pipe
from fuseboard.store.store import Reply, pack

log = logging.getLogger("fuseboard.store")

#: Gets the content of one message. It is called on the loop, so it must be quick.
OnMessage = Callable[[bytes], None]

#: After this silence the server is asked whether it is still there.
QUIET_S = 5.0
#: It must answer within this time. The time is taken in steps: a loop that was busy for all of it has not
#: read the answer that arrived meanwhile.
PONG_S = 1.0
_STEPS = 4


class Subscription:
    """Used once: ``open``, then ``close``. ``on_lost`` is called once when the connection ends by itself."""

    def __init__(self, on_message: Mapping[bytes, OnMessage], on_lost: Callable[[], None]) -> None:
        self._handlers = dict(on_message)
        self._on_lost = on_lost
        self._pipe: Pipe | None = None
        self._asked = self._confirmed = 0
        self._all_confirmed = asyncio.Event()
        #: Why it has ended.
        self.ended_by: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False
        #: Steps that have passed without an answer to PING; 0 when it was not asked.
        self._silent_steps = 0

    @property
    def alive(self) -> bool:
        return self._pipe is not None and self._pipe.open

    async def open(self, url: StoreUrl, address: Address | None, *, timeout_s: float) -> None:
        """Connect and subscribe. When it returns, no later message is missed.

        Raises ``OSError``, ``TimeoutError``, or ``hiredis.ReplyError`` (wrong password, no permission for
        a channel).
        """
        async with asyncio.timeout(timeout_s):
            self._pipe = await open_pipe(url, address, self._lost, scripts=False)
        if not self._pipe.open:
            raise ConnectionResetError("the connection was lost at once")
        # Before the command: the server confirms each channel with a reply of its own, and a message may
        # arrive together with them.
        self._pipe.subscribe(self._received)
        self._subscribe(*self._handlers)
        self._arm(QUIET_S)
        confirmed = await wait_for_event(self._all_confirmed, timeout_s)
        if self.ended_by is not None:
            raise self.ended_by
        if not confirmed:
            raise TimeoutError("the subscription was not confirmed")

    def add(self, channel: bytes, on_message: OnMessage) -> None:
        """Also subscribe to ``channel``. Messages arrive from some time on."""
        known = channel in self._handlers
        self._handlers[channel] = on_message
        if not known and self.alive:
            self._subscribe(channel)

    def close(self) -> None:
        """Disconnect. Later messages are dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.abort()

    def _subscribe(self, *channels: bytes) -> None:
        if self._pipe is not None:
            self._asked += len(channels)
            self._pipe.send(pack("SUBSCRIBE", *channels))

    def _received(self, reply: Reply) -> None:
        self._heard = True
        match reply:
            case [b"message", bytes() as channel, bytes() as content]:
                self._handle(channel, content)
            case [b"subscribe", bytes(), int()]:
                self._confirmed += 1
                if self._confirmed == self._asked:
                    self._all_confirmed.set()
            case [b"pong", *_]:
                pass
            case hiredis.ReplyError() if self._all_confirmed.is_set():
                # A reply to a PING that this user may not use, or to an added channel. The server is there.
                log.debug("subscription.refused: %s", reply)
            case hiredis.ReplyError():
                self._fail(reply)
            case _:
                self._fail(ConnectionResetError(f"{reply!r:.100} is no message of a subscription"))

    def _handle(self, channel: bytes, content: bytes) -> None:
        handler = self._handlers.get(channel)
        if handler is None or self._pipe is None:
            return
        try:
            handler(content)
        except Exception:
            # A defect of one reader must not cost the others their messages.
            log.exception("subscription.defect channel=%s", channel.decode(errors="replace"))

    def _fail(self, error: Exception) -> None:
        self.ended_by = self.ended_by or error
        self._all_confirmed.set()
        if self._pipe is not None:
            self._pipe.abort()

    def _lost(self, _: Pipe, error: Exception | None) -> None:
        if self._pipe is None:
            return
        self.ended_by = self.ended_by or error or ConnectionResetError("closed by the server")
        self._all_confirmed.set()
        self.close()
        self._on_lost()

    # Keep-alive

    def _arm(self, after_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(after_s, self._look)

    def _look(self) -> None:
        if self._pipe is None:
            return
        if self._heard:
            self._heard, self._silent_steps = False, 0
            self._arm(QUIET_S)
            return
        if self._silent_steps >= _STEPS:
            self._fail(TimeoutError(f"no answer to PING within {PONG_S:g} s"))
            return
        if self._silent_steps == 0:
            self._pipe.send(pack("PING"))
        self._silent_steps += 1
        self._arm(PONG_S / _STEPS)
