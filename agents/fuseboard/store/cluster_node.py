"""One primary of a Cluster, and one question on its way to it."""

from collections.abc import Callable
from time import monotonic
from typing import Protocol

import hiredis

from fuseboard.contract.scripts import Script
from fuseboard.contract.store_url import Address
from fuseboard.store.pipelined_connection import Pipe
from fuseboard.store.store import (
    ConnectionLostError,
    FunctionMissingError,
    NotServedError,
    OnReply,
    Reply,
    Word,
    ignore,
    load,
    pack,
)

ASKING = pack("ASKING")

#: The weight of a new latency in the running mean: about the last eight replies count.
_WEIGHT = 0.125


class Node:
    """A primary. It is asked while it is connected and not ``resting``."""

    __slots__ = (
        "address",
        "errors",
        "heard_at",
        "latency_s",
        "pipe",
        "resting",
        "resting_since",
        "unreached",
    )

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pipe: Pipe | None = None
        #: It was at fault. It is not asked until it answers a question from the background.
        self.resting = ""
        self.resting_since = 0.0
        #: When it last answered, or was asked after a pause.
        self.heard_at = 0.0
        self.latency_s = 0.0
        #: Errors since its last correct answer.
        self.errors = 0
        #: Why the last attempt to connect to it failed.
        self.unreached: Exception | None = None

    @property
    def usable(self) -> bool:
        return self.pipe is not None and not self.resting

    @property
    def trouble(self) -> str:
        return "" if self.usable else f"{self.address} {self.resting or _why(self.unreached)}"

    def fault(self, deadline_s: float) -> str:
        """The fault of the node, judged by its last answers; empty when nothing is."""
        if self.pipe is None:
            return ""
        if self.errors:
            return "answers with errors"
        if self.latency_s > deadline_s:
            return "is slow"
        if self.pipe.waiting and monotonic() - self.heard_at > deadline_s:
            return "does not answer"
        return ""

    def rest(self, fault: str) -> None:
        self.resting, self.resting_since = fault, monotonic()

    def recover(self) -> None:
        self.resting, self.errors, self.latency_s, self.unreached = "", 0, 0.0, None


def _why(error: Exception | None) -> str:
    """Why a node cannot be asked. A server that answers says so itself."""
    if isinstance(error, FunctionMissingError):
        return str(error).partition(";")[0]
    if isinstance(error, hiredis.ReplyError):
        return f"refuses the connection: {error!s:.100}"
    return "cannot be reached"


class Redirects(Protocol):
    """Decides what to do about an error."""

    def refused(self, question: "Question", error: hiredis.ReplyError) -> None: ...


class Question:
    """A script call, wherever its keys are. It is called with the reply."""

    __slots__ = (
        "_asked_at",
        "_store",
        "asking",
        "hops",
        "keys",
        "loaded",
        "node",
        "on_reply",
        "script",
        "tail",
    )

    def __init__(
        self,
        store: Redirects,
        script: Script,
        keys: tuple[bytes, ...],
        tail: tuple[Word, ...],
        on_reply: OnReply,
    ) -> None:
        self._store = store
        self._asked_at = 0.0
        self.script = script
        self.keys = keys
        self.tail = tail
        self.on_reply: Callable[[Reply], None] = on_reply
        self.node: Node
        #: How often a node forwarded it.
        self.hops = 0
        #: Its script was loaded for it.
        self.loaded = False
        #: Its slot is moving to the node that is asked.
        self.asking = False

    def send(self, node: Node, *, load_first: bool = False) -> None:
        """Ask ``node``. With ``load_first``, load the script before."""
        self.loaded = self.loaded or load_first
        pipe = node.pipe
        if pipe is None:
            self.on_reply(NotServedError(node.trouble))
            return
        self.node = node
        self._asked_at = monotonic()
        if not pipe.waiting:
            node.heard_at = self._asked_at
        if load_first:
            pipe.write(load(self.script), ignore)
        if self.asking:
            pipe.write(ASKING, ignore)
        pipe.write(pack(*self.script.words(function=pipe.functions), *self.tail), self)

    def __call__(self, reply: Reply) -> None:
        if isinstance(reply, ConnectionLostError):
            self.on_reply(reply)
            return
        node = self.node
        node.heard_at = now = monotonic()
        node.latency_s += (now - self._asked_at - node.latency_s) * _WEIGHT
        if isinstance(reply, hiredis.ReplyError):
            self._store.refused(self, reply)
        else:
            node.errors = 0
            self.on_reply(reply)
