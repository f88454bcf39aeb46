"""One pipelined connection to Redis, for the hot path only.

A pool of connections with one call in flight each costs 50 to 90 us of Python per call and
one system call in Redis per decision; everything queued in one tick on one socket costs a
tenth of that (docs/adr/0004). There are no retries and no cancellation here: a reply is
always read, in order, however late, because only it tells whether something was consumed.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import unquote, urlsplit

import hiredis

from fuseboard.errors import Misconfigured
from fuseboard.store.scripts import ADMIT, REPORT, SETTLE, Script

Reply = object
OnReply = Callable[[Reply], None]
Word = str | bytes | int


def pack(*command: Word) -> bytes:
    """A command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type] # its stub knows tuples of one only
    return packed


def _settles(future: asyncio.Future[Reply]) -> OnReply:
    def settle(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    return settle


class ConnectionLostError(Exception):
    """Given to ``OnReply`` in place of a reply: whether the command ran is unknown."""


class Pipe(asyncio.Protocol):
    """The socket: commands out, replies matched in order."""

    def __init__(self, on_lost: Callable[[Exception | None], None]) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[OnReply] = deque()
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by isinstance: uvloop's transports are not asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("socket")
        if plain is not None and plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, command: bytes, on_reply: OnReply) -> None:
        if self.transport is None or self.transport.is_closing():
            on_reply(ConnectionLostError("the connection is closing"))
            return
        self._waiting.append(on_reply)
        self.transport.write(command)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                # A reply nobody asked for means that replies and questions no longer match.
                waiting.popleft()(reply)
        except (hiredis.ProtocolError, IndexError):
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, deque()
        for on_reply in waiting:
            on_reply(ConnectionLostError(str(error or "closed by the server")))
        self._on_lost(error)


class Store:
    """Redis at ``url``: ``redis://``, ``rediss://`` or ``unix://``, with user, password and database.

    ``connect`` is called by a background task only; a decision never waits for one.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise Misconfigured("FUSEBOARD_REDIS_URL must begin with redis://, rediss:// or unix://")
        self._parts = parts
        self._pipe: Pipe | None = None
        self._lost: Callable[[Exception | None], None] = lambda _: None

    def on_lost(self, callback: Callable[[Exception | None], None]) -> None:
        """Call ``callback`` whenever an established connection ends unexpectedly."""
        self._lost = callback

    @property
    def connected(self) -> bool:
        return self._pipe is not None

    async def connect(self, timeout: float = 1.0) -> None:
        """Open the connection, authenticate and load the scripts.

        Raises ``OSError`` (refused, unreachable), ``TimeoutError`` or ``hiredis.ReplyError``
        (wrong password, loading, no permission). Any earlier connection is closed first.
        """
        await self.close()
        pipe: Pipe | None = None
        try:
            async with asyncio.timeout(timeout):
                pipe = await self._open()
                for command in self._greeting():
                    reply = await self._ask_alone(pipe, command)
                    if isinstance(reply, hiredis.ReplyError):
                        raise reply
        except BaseException:
            if pipe is not None and pipe.transport is not None:
                pipe.transport.abort()
            raise
        self._pipe = pipe

    async def close(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None and pipe.transport is not None:
            pipe.transport.abort()
            # Let the loop tell those who wait before anybody builds on the absence.
            await asyncio.sleep(0)

    def ask(self, command: bytes, on_reply: OnReply) -> None:
        """Queue one packed command; ``on_reply`` gets its reply, an error value included."""
        if self._pipe is None:
            on_reply(ConnectionLostError("not connected"))
        else:
            self._pipe.write(command, on_reply)

    async def call(self, *command: Word, timeout: float = 1.0) -> Reply:
        """One command off the hot path, waiting for its reply. Raises what Redis answers as an error."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.ask(pack(*command), _settles(future))
        async with asyncio.timeout(timeout):
            reply = await future
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _open(self) -> Pipe:
        loop = asyncio.get_running_loop()
        pipe: Pipe

        def made() -> Pipe:
            return Pipe(lambda error: self._ended(pipe, error))

        if self._parts.scheme == "unix":
            _, pipe = await loop.create_unix_connection(made, self._parts.path)
        else:
            context = ssl.create_default_context() if self._parts.scheme == "rediss" else None
            _, pipe = await loop.create_connection(
                made, self._parts.hostname or "127.0.0.1", self._parts.port or 6379, ssl=context
            )
        return pipe

    def _ended(self, pipe: Pipe, error: Exception | None) -> None:
        if pipe is self._pipe:
            self._pipe = None
            self._lost(error)

    def _greeting(self) -> list[bytes]:
        parts = self._parts
        greeting: list[tuple[str, ...]] = []
        if parts.password:
            user = (unquote(parts.username),) if parts.username else ()
            greeting.append(("AUTH", *user, unquote(parts.password)))
        database = parts.path.strip("/") if parts.scheme != "unix" else ""
        if database and database != "0":
            greeting.append(("SELECT", database))
        greeting.append(("CLIENT", "SETNAME", "fuseboard"))
        greeting.extend(("SCRIPT", "LOAD", script.text) for script in (ADMIT, REPORT, SETTLE))
        return [pack(*command) for command in greeting]

    @staticmethod
    async def _ask_alone(pipe: Pipe, command: bytes) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        pipe.write(command, _settles(future))
        reply = await future
        if isinstance(reply, ConnectionLostError):
            raise ConnectionResetError(str(reply))
        return reply

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        """Ask one script. A server that lost it (restart, SCRIPT FLUSH) gets the text with the question."""
        tail = (len(keys), *keys, *arguments)

        def answered(reply: Reply) -> None:
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
                # Nothing ran, so asking again cannot consume twice.
                self.ask(pack("EVAL", script.text, *tail), on_reply)
            else:
                on_reply(reply)

        self.ask(pack("EVALSHA", script.sha, *tail), answered)
