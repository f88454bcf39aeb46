"""An answer in one system call."""

from asyncio import Transport
from typing import Any

from controlplane.gateway.wire.write_together import Outbox


class OneWrite:
    """A transport that holds an answer's head until its body is there.

    uvicorn writes them apart, and each write is a system call: together a fifth of a beat. Only for
    applications that send both without waiting in between.
    """

    __slots__ = ("_head", "_outbox", "_transport")

    def __init__(self, transport: Transport, outbox: Outbox) -> None:
        self._transport = transport
        #: Answers that go first.
        self._outbox = outbox
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
            return
        self._outbox.send()
        self._transport.write(data)

    def close(self) -> None:
        """Also of an answer that was cut short."""
        self._outbox.send()
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
