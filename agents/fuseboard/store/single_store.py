"""One Redis server behind one pipelined connection."""

import asyncio
from collections.abc import Callable, Sequence

import hiredis

from fuseboard.contract.scripts import Script
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.pipelined_connection import Pipe, open_pipe, settles
from fuseboard.store.store import (
    ConnectionLostError,
    NotServedError,
    OnReply,
    Reply,
    Word,
    ignore,
    load,
    needs_another_way,
    pack,
    pack_question,
)


class SingleStore:
    """A ``Store``; see there."""

    together = True

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._pipe: Pipe | None = None
        #: Whether scripts are called as functions, by name.
        self._functions = False
        self._lost: Callable[[Exception | None], None] = lambda _: None
        self._news: Callable[[], None] = lambda: None

    def on_lost(self, callback: Callable[[Exception | None], None]) -> None:
        self._lost = callback

    def on_news(self, callback: Callable[[], None]) -> None:
        self._news = callback

    @property
    def connected(self) -> bool:
        return self._pipe is not None

    def serves(self, key: bytes) -> bool:
        return self._pipe is not None

    @property
    def trouble(self) -> str:
        return ""

    async def connect(self, timeout: float = 1.0) -> None:
        await self.drop()
        async with asyncio.timeout(timeout):
            pipe = await open_pipe(self._url, await self._address(), self._ended)
            try:
                await self._examine(pipe)
            except BaseException:
                pipe.abort()
                raise
        if not pipe.open:
            raise ConnectionResetError("the connection was lost at once")
        self._pipe, self._functions = pipe, pipe.functions

    async def drop(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.abort()
            # Let the waiting callers run before anything relies on the connection being closed.
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self.drop()

    def ask(self, command: bytes, on_reply: OnReply) -> None:
        """Send one packed command. ``on_reply`` gets its reply, or an error value."""
        if self._pipe is None:
            on_reply(ConnectionLostError("not connected"))
        else:
            self._pipe.write(command, on_reply)

    async def call(self, *command: Word, timeout: float = 1.0) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.ask(pack(*command), settles(future))
        async with asyncio.timeout(timeout):
            reply = await future
        if isinstance(reply, Exception):
            raise reply
        return reply

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        command = pack_question(script, keys, arguments, function=self._functions)

        def answered(reply: Reply) -> None:
            if not isinstance(reply, hiredis.ReplyError):
                on_reply(reply)
            elif str(reply).startswith("NOSCRIPT"):
                # Nothing ran, so a second attempt cannot consume twice.
                self.ask(load(script), ignore)
                self.ask(command, on_reply)
            elif needs_another_way(str(reply)):
                # The connection ends, which counts once against Redis. Every question on it fails alike.
                on_reply(NotServedError(str(reply)))
                self._refused(str(reply))
            else:
                on_reply(reply)
                self._refused(str(reply))

        self.ask(command, answered)

    def isolate(self, deadline_s: float) -> bool:
        return False

    async def _address(self) -> Address | None:
        """The address to connect to; ``None`` for the socket of the URL."""
        return self._url.addresses[0] if self._url.addresses else None

    async def _examine(self, pipe: Pipe) -> None:
        """Raise if this server must not be used."""

    def _refused(self, error: str) -> None:
        """A script returned an error. Its caller has it already."""
        # A new connection finds out how to call scripts, and says what is missing.
        if needs_another_way(error) and self._pipe is not None:
            self._pipe.abort()

    def _ended(self, pipe: Pipe, error: Exception | None) -> None:
        if pipe is self._pipe:
            self._pipe = None
            self._lost(error)
