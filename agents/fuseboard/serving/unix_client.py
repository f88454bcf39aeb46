"""Asks a listener of this package over its unix socket, one request after the other."""

import asyncio
from asyncio import IncompleteReadError, StreamReader, StreamWriter

from fuseboard.serving.exchange import JSON

#: The time after which a process that does not answer counts as frozen.
ANSWER_S = 2.0


class UnixClient:
    """One connection, which the first request opens, and each one after the other side has closed it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._streams: tuple[StreamReader, StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", trace: str = "") -> tuple[int, bytes]:
        """Status and body of the answer. Raises ``OSError`` if no process answers in ``ANSWER_S``.

        A connection that the other side has closed is opened again: the request may arrive twice.
        """
        more = f"traceparent: {trace}\r\n" if trace else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {JSON}\r\n{more}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        request, was_open = head.encode("latin-1") + body, self._streams is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                try:
                    return await self._exchange(request)
                except (ConnectionError, IncompleteReadError):
                    self.close()
                    if not was_open:
                        raise
                    return await self._exchange(request)
        except IncompleteReadError:
            raise ConnectionResetError(f"{self._path} was closed before its answer") from None
        except BaseException:
            # The answer of this request must not look like that of the next one.
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(self._path)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        length = next(text for text in lines if text.startswith("content-length: "))
        return int(line.split()[1]), await reader.readexactly(int(length.partition(" ")[2]))
