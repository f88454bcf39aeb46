"""Redis as the rest of the agent sees it, whether it is one server, a Cluster or watched by Sentinels."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import hiredis

from fuseboard.store.scripts import Script

Reply = object
OnReply = Callable[[Reply], None]
Word = str | bytes | int

#: Keys of a question whose packed form is kept.
FEW_KEYS = 12


def pack(*command: Word) -> bytes:
    """A command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type] # its stub knows tuples of one only
    return packed


def pack_question(script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word]) -> bytes:
    """A script with its keys and arguments, as they go over the wire."""
    if len(arguments) != 1 or not isinstance(arguments[0], bytes):
        return pack("EVALSHA", script.sha, len(keys), *keys, *arguments)
    # Few keys are often asked for again, together; many never.
    head = _remembered_head(script, keys) if len(keys) <= FEW_KEYS else _head(script, keys)
    return b"%b$%d\r\n%b\r\n" % (head, len(arguments[0]), arguments[0])


def _head(script: Script, keys: tuple[bytes, ...]) -> bytes:
    """All but the one argument."""
    words = pack(len(keys), *keys)
    return b"*%d\r\n%b%b" % (4 + len(keys), script.command, words[words.index(b"$") :])


_remembered_head = lru_cache(maxsize=4096)(_head)


class ConnectionLostError(Exception):
    """Given to ``OnReply`` in place of a reply: whether the command ran is unknown."""


class NotServedError(ConnectionLostError):
    """The part of a Cluster that has this key cannot be asked now. Nothing ran, other parts go on."""


class Store(Protocol):
    """Made by ``open_store``. ``connect`` is for a background task; a decision never waits for one."""

    #: Whether keys of different hash tags may stand in one question.
    together: bool

    @property
    def connected(self) -> bool:
        """Whether anything of it can be asked."""
        ...

    def serves(self, key: bytes) -> bool:
        """Whether the part of it that has this key can be asked."""
        ...

    @property
    def trouble(self) -> str:
        """Which part is not asked now and why, so that its keys are decided locally; empty when none."""
        ...

    def on_lost(self, callback: Callable[[Exception | None], None]) -> None:
        """Call ``callback`` whenever the store, connected before, is so no more."""
        ...

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when ``trouble`` has changed, or when connecting should work again."""
        ...

    async def connect(self, timeout: float = 1.0) -> None:
        """Find the servers, authenticate and load the scripts.

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
        """Ask one script; all ``keys`` have one hash tag. ``on_reply`` gets the reply, errors included.

        A server that lost the script (restart, failover) gets its text with the question.
        """
        ...

    async def call(self, *command: Word, timeout: float = 1.0) -> Reply:
        """One command off the hot path; its second word is its key. Raises what Redis answers as an error."""
        ...

    def isolate(self, deadline_s: float) -> bool:
        """Too much went wrong just now: stop asking the part at fault, by itself until that part is back.

        ``False`` when it is the whole, or nobody knows which part.
        """
        ...
