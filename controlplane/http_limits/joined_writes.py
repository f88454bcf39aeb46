"""One system call and one packet per answer."""

import asyncio
from typing import Any

#: Written together at most.
JOINED_BYTES = 65_536


class JoinedWrites:
    """A transport that sends what is written in one turn of the event loop at once.

    uvicorn writes the head and the body of an answer apart. Each write is a system call and a packet,
    and wakes the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pieces: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's."""
        return getattr(self._transport, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(bytes(data))
        self._size += len(data)
        if self._size > JOINED_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._pieces:
            data, self._size = b"".join(self._pieces), 0
            self._pieces.clear()
            # The connection may have ended since. uvloop raises for a transport that is closed.
            if not self._transport.is_closing():
                self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._transport.abort()
