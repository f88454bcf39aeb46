"""The sockets that a process listens on."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fuseboard.serving.exchange import Service
from fuseboard.serving.http1 import Connections, Http1
from fuseboard.serving.sockets import unix_socket

#: How often connections whose time is over are closed.
SWEEP_S = 1.0
#: Connections that wait until they are accepted.
BACKLOG = 100


logger = logging.getLogger("fuseboard.serving")


class Listeners:
    """Listens until ``stop``. Sockets with the same ``Connections`` share their bounds."""

    def __init__(self) -> None:
        #: Called once in each sweep.
        self.on_sweep: list[Callable[[], None]] = []
        self._connections: list[Connections] = []
        self._servers: list[asyncio.Server] = []
        self._paths: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    async def listen_tcp(
        self, service: Service, connections: Connections, host: str, port: int, *, shares_port: bool = False
    ) -> int:
        """The port: that of the system's choice if ``port`` is 0. Raises ``OSError``.

        With ``shares_port``, other processes of this user may listen on it too. Each gets a part of the new
        connections.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Http1(service, connections), host, port, reuse_port=shares_port or None
        )
        self._add(server, connections)
        chosen: int = server.sockets[0].getsockname()[1]
        return chosen

    async def listen_unix(self, service: Service, connections: Connections, path: str) -> None:
        """Raises ``OSError``. ``stop`` removes the file."""
        await self.accept_from(service, connections, unix_socket(path))
        self._paths.append(path)

    async def accept_from(self, service: Service, connections: Connections, sock: socket.socket) -> None:
        """Accept connections of a unix socket whose file belongs to the caller. Raises ``OSError``."""
        loop = asyncio.get_running_loop()
        # From Python 3.13 on, the loop would remove a file that other processes still use.
        more: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        server = await loop.create_unix_server(
            lambda: Http1(service, connections), sock=sock, backlog=BACKLOG, **more
        )
        self._add(server, connections)

    def _add(self, server: asyncio.Server, connections: Connections) -> None:
        self._servers.append(server)
        if connections not in self._connections:
            self._connections.append(connections)
        if self._timer is None:
            self._sweep()

    async def stop(self) -> None:
        """Close all sockets and connections. Nothing is pending when this returns."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for server in self._servers:
            server.close()
        for path in self._paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        await asyncio.gather(*(connections.close() for connections in self._connections))

    def _sweep(self) -> None:
        for sweep in (*(connections.sweep for connections in self._connections), *self.on_sweep):
            try:
                sweep()
            except Exception:
                logger.exception("serving.defect: what has expired is not closed")
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
