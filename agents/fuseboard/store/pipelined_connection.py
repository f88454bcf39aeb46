"""One pipelined connection to one Redis server, for the hot path.

A pool of connections with one call in flight each costs 50 to 90 us of Python per call, and one system
call in Redis per decision. All commands of one tick on one socket cost a tenth of that (docs/adr/0004).
There are no retries and no cancellation here: every reply is read, in order, however late, because only
the reply says whether something was consumed.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

import hiredis

from fuseboard.contract.scripts import SCRIPTS
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.store import (
    ConnectionLostError,
    FunctionMissingError,
    OnReply,
    Reply,
    Word,
    lacks_function,
    pack,
)
from fuseboard.store.tls import tls_context

OnLost = Callable[["Pipe", Exception | None], None]


class Pipe(asyncio.Protocol):
    """The socket: sends commands, and matches replies in order."""

    def __init__(self, on_lost: OnLost) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[OnReply] = deque()
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        #: Gets the messages of a subscription. Without one, no message is expected.
        self.on_message: OnReply | None = None
        #: Whether scripts are called as functions: this user may not load scripts.
        self.functions = False

    @property
    def open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def waiting(self) -> int:
        """Questions without a reply yet."""
        return len(self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked with isinstance: the transports of uvloop are not those of asyncio.
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
                if waiting or self.on_message is None:
                    # After an unexpected reply, replies and questions no longer match.
                    waiting.popleft()(reply)
                else:
                    self.on_message(reply)
        except (hiredis.ProtocolError, IndexError):
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, deque()
        for on_reply in waiting:
            on_reply(ConnectionLostError(str(error or "closed by the server")))
        self._on_lost(self, error)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, *command: Word) -> Reply:
        """Run one command and wait for its reply. An error reply is returned. Has no deadline."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.write(pack(*command), settles(future))
        return await future

    async def insist(self, *command: Word) -> Reply:
        """Like ``ask``, but raises an error reply, and ``OSError`` when the connection breaks."""
        reply = await self.ask(*command)
        if isinstance(reply, ConnectionLostError):
            raise ConnectionResetError(str(reply))
        if isinstance(reply, Exception):
            raise reply
        return reply


def settles(future: asyncio.Future[Reply]) -> OnReply:
    """A callback that sets ``future`` to the reply, unless the future is already done."""

    def settle(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    return settle


async def open_pipe(url: StoreUrl, address: Address | None, on_lost: OnLost, *, scripts: bool = True) -> Pipe:
    """Connect to ``address`` or to the socket of the URL, authenticate, and load the scripts.

    Raises ``OSError``, or ``hiredis.ReplyError`` (wrong password, loading, no permission).
    """
    loop = asyncio.get_running_loop()
    pipe: Pipe | None = None
    try:
        if address is None:
            _, pipe = await loop.create_unix_connection(lambda: Pipe(on_lost), url.socket)
        else:
            context = tls_context(url.ca_file) if url.tls else None
            _, pipe = await loop.create_connection(lambda: Pipe(on_lost), *address, ssl=context)
        for command in _greeting(url):
            await pipe.insist(*command)
        if scripts:
            pipe.functions = not await _load_scripts(pipe)
    except BaseException:
        if pipe is not None:
            pipe.abort()
        raise
    return pipe


async def _load_scripts(pipe: Pipe) -> bool:
    """Load the scripts. ``False`` when this user may not load any: then their functions must be there."""
    try:
        for script in SCRIPTS:
            await pipe.insist("SCRIPT", "LOAD", script.text)
    except hiredis.ReplyError as error:
        if not str(error).startswith("NOPERM"):
            raise
    else:
        return True
    for script in SCRIPTS:
        # Without arguments, a function fails before it reads or writes a key.
        reply = await pipe.ask("FCALL", script.function, 0)
        if isinstance(reply, ConnectionLostError):
            raise ConnectionResetError(str(reply))
        if lacks_function(str(reply)):
            raise FunctionMissingError(
                f"this user may not load scripts, and function {script.function} is missing; the worker of "
                "the control plane loads it: set FUSEBOARD_ACL_PROFILE=hardened there, and upgrade it "
                "before pods"
            )
        if str(reply).startswith(("NOPERM", "LOADING", "BUSY")) and isinstance(reply, hiredis.ReplyError):
            raise reply
    return False


def _greeting(url: StoreUrl) -> list[tuple[str, ...]]:
    greeting: list[tuple[str, ...]] = []
    if url.password:
        greeting.append(("AUTH", *((url.username,) if url.username else ()), url.password))
    if url.database:
        greeting.append(("SELECT", str(url.database)))
    greeting.append(("CLIENT", "SETNAME", "fuseboard"))
    return greeting
