"""One pipelined connection to one Redis server: for the hot path, and for all else the agent reads there.

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

from fuseboard.cancellation import wait_for_event
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

#: Keep-alive of an idle connection, in seconds and probes, where the system has them. Otherwise a firewall
#: that forgot the connection is noticed by the next question only. The last option, in milliseconds, ends a
#: question that a vanished host never receives: a worker of a backlog waits for its answer without a limit.
_KEEP_ALIVE = (
    *(("TCP_KEEPIDLE", 15), ("TCP_KEEPALIVE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)),
    ("TCP_USER_TIMEOUT", 30_000),
)
#: ``ask_within`` waits at most this many times its patience, however slowly the reply trickles in.
_MAX_WAITS = 30


class Pipe(asyncio.Protocol):
    """The socket: sends commands, and matches replies in order."""

    def __init__(self, on_lost: OnLost) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[OnReply] = deque()
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        #: Once this is a subscription: gets everything that the server sends.
        self._on_message: OnReply | None = None
        #: Whether scripts are called as functions: this user may not load scripts.
        self.functions = False
        #: How often the server has sent anything, and how many deadlines passed in silence since.
        self._heard = 0
        self._silences = 0

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
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def write(self, command: bytes, on_reply: OnReply) -> None:
        if self.transport is None or self.transport.is_closing():
            on_reply(ConnectionLostError("the connection is closing"))
            return
        self._waiting.append(on_reply)
        self.transport.write(command)

    def subscribe(self, on_message: OnReply) -> None:
        """From now on, ``on_message`` gets everything that the server sends, and ``send`` is used to send."""
        if self._waiting:
            raise RuntimeError("a connection with open questions cannot become a subscription")
        self._on_message = on_message

    def send(self, command: bytes) -> None:
        """Send a command of a subscription. The answer of the server is a message like all others."""
        if self.transport is not None:
            self.transport.write(command)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        self._heard += 1
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if self._on_message is None:
                    # After an unexpected reply, replies and questions no longer match.
                    waiting.popleft()(reply)
                else:
                    self._on_message(reply)
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

    async def ask_within(self, patience_s: float, *commands: tuple[Word, ...]) -> list[Reply]:
        """Send commands in one write, and return their replies in order.

        Raises the first error among the replies, ``OSError`` when the connection breaks, and
        ``TimeoutError`` when the server sends nothing for ``patience_s``. A reply may take longer than
        that to arrive. A late reply is left to the reader, so the next question is in order. The second
        deadline that passes without a word from the server ends the connection.
        """
        if not self.open:
            raise ConnectionResetError("the connection is closed")
        replies: list[Reply] = []
        complete = asyncio.Event()

        def collect(reply: Reply) -> None:
            replies.append(reply)
            if len(replies) == len(commands):
                complete.set()

        self._waiting.extend([collect] * len(commands))
        cast(asyncio.Transport, self.transport).write(b"".join([pack(*command) for command in commands]))
        for _ in range(_MAX_WAITS):
            heard = self._heard
            if await wait_for_event(complete, patience_s):
                self._silences = 0
                break
            if heard == self._heard:
                self._silences += 1
                if self._silences > 1:
                    self.abort()
                raise TimeoutError(f"no reply within {patience_s:g} s")
            self._silences = 0
        else:
            self.abort()
            raise TimeoutError("the reply takes too long")
        for reply in replies:
            if isinstance(reply, ConnectionLostError):
                raise ConnectionResetError(str(reply))
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def transaction(self, patience_s: float, *commands: tuple[Word, ...]) -> list[Reply]:
        """The replies to commands that only read, as of one moment. Raises like ``ask_within``.

        The error of a command that was not accepted, such as ``MOVED``, comes before that of the whole
        transaction: it says what is wrong.
        """
        *_, replies = await self.ask_within(patience_s, ("MULTI",), *commands, ("EXEC",))
        if not isinstance(replies, list) or len(replies) != len(commands):
            self.abort()
            raise ConnectionResetError("Redis gave an invalid answer to EXEC")
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


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
