"""How uvicorn serves the gateway."""

from asyncio import Transport
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Longer than any usual pace, so that a server keeps its connection from beat to beat; uvicorn's
#: 5 s would have every server connect anew for every beat.
KEEP_ALIVE_S = 75

#: A fleet that lost its gateway comes back all at once.
BACKLOG = 4096

#: For requests in flight after a SIGTERM.
GRACE_S = 2


class OneWrite:
    """A transport that holds an answer's head until its body is there.

    uvicorn writes them apart, and each write is a system call: together a fifth of a beat. Only for
    applications that send both without waiting in between.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
            return
        self._transport.write(data)

    def close(self) -> None:
        """Also of an answer that was cut short."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class OneWriteProtocol(HttpToolsProtocol):
    """uvicorn's own, over ``OneWrite``."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(Transport, OneWrite(transport)))


def uvicorn_config(app: Any, *, http: Any = OneWriteProtocol, **tls: Any) -> uvicorn.Config:
    """How the gateway is served; the benchmark serves its rivals alike, but with uvicorn's own protocol."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        **tls,
    )
