"""Redis as the rest of the agent sees it: one server, a Cluster, or a primary watched by Sentinels."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import hiredis

from fuseboard.contract.scripts import Script

Reply = object
OnReply = Callable[[Reply], None]
Word = str | bytes | int

#: The packed form of questions with at most this many keys is cached.
FEW_KEYS = 12


def pack(*command: Word) -> bytes:
    """A command in wire format."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type] # its stub knows tuples of one only
    return packed


def pack_question(
    script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], *, function: bool = False
) -> bytes:
    """A script with its keys and arguments, in wire format. With ``function``, it is called by name."""
    if len(arguments) != 1 or not isinstance(arguments[0], bytes):
        return pack(*script.words(function=function), len(keys), *keys, *arguments)
    # Few keys are often asked for together again; many keys never are.
    head = (_remembered_head if len(keys) <= FEW_KEYS else _head)(script, keys, function)
    return b"%b$%d\r\n%b\r\n" % (head, len(arguments[0]), arguments[0])


def _head(script: Script, keys: tuple[bytes, ...], function: bool) -> bytes:
    """Everything except the one argument."""
    words = pack(len(keys), *keys)
    return b"*%d\r\n%b%b" % (4 + len(keys), script.command(function=function), words[words.index(b"$") :])


_remembered_head = lru_cache(maxsize=4096)(_head)


def load(script: Script) -> bytes:
    """The command that loads a script, in wire format."""
    return pack("SCRIPT", "LOAD", script.text)


def lacks_function(error: str) -> bool:
    """Whether the server refused a call because it does not know the function: nothing ran."""
    return error.startswith("ERR Function not found")


def needs_another_way(error: str) -> bool:
    """Whether this connection calls scripts in a way that does not work any more: nothing ran.

    The function is missing, or the rights of the user have changed. A new connection checks both.
    """
    changed = error.startswith("NOPERM") and ("'evalsha'" in error or "'fcall'" in error)
    return changed or lacks_function(error)


def ignore(_: Reply) -> None:
    """The reply does not matter; the reply to the question after it does."""


class ConnectionLostError(Exception):
    """Passed to ``OnReply`` instead of a reply. It is unknown whether the command ran."""


class FunctionMissingError(ConnectionRefusedError):
    """The server answers, but cannot decide: this user calls functions, and one is missing."""


class NotServedError(ConnectionLostError):
    """The part of a Cluster with this key cannot be asked now. Nothing ran; other parts continue."""


class Store(Protocol):
    """Made by ``open_store``. ``connect`` is for a background task: a decision never waits for it."""

    #: Whether one question may contain keys of different hash tags.
    together: bool

    @property
    def connected(self) -> bool:
        """Whether at least one part of the store can be asked."""
        ...

    def serves(self, key: bytes) -> bool:
        """Whether the part of the store with this key can be asked."""
        ...

    @property
    def trouble(self) -> str:
        """The part that is not asked now, and why; its keys are decided locally. Empty when there is none."""
        ...

    def on_lost(self, callback: Callable[[Exception | None], None]) -> None:
        """Call ``callback`` when the store loses its connection."""
        ...

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when ``trouble`` has changed, or when connecting should succeed again."""
        ...

    async def connect(self, timeout: float = 1.0) -> None:
        """Find the servers, authenticate and load the scripts, or check that the functions are there.

        Raises ``OSError`` (refused, unreachable), ``TimeoutError``, ``ConnectionLostError`` or
        ``hiredis.ReplyError`` (wrong password, loading). Earlier connections are dropped first.
        """
        ...

    async def drop(self) -> None:
        """Disconnect; ``connect`` may follow."""
        ...

    async def close(self) -> None:
        """Disconnect for good."""
        ...

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        """Run a script; all ``keys`` have one hash tag. ``on_reply`` gets the reply, or an error.

        A server that lost the script (restart, failover) gets it again, and then the question.
        """
        ...

    async def call(self, *command: Word, timeout: float = 1.0) -> Reply:
        """Run one command off the hot path. Its second word is its key. Raises an error reply."""
        ...

    def isolate(self, deadline_s: float) -> bool:
        """Too much has failed: stop asking the part at fault, until that part is back.

        ``False`` when all of the store is at fault, or when the part is unknown.
        """
        ...
