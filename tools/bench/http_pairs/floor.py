"""The floor of a sidecar: a bare httptools server that answers every request with the same body.

``python -m tools.bench.http_pairs.floor`` prints its port. It reads path and body, and no header. With the
path of a unix socket, it also answers Envoy's bridge there: that every request is allowed.
"""

import asyncio
import sys
from typing import cast

import uvloop
from httptools import HttpRequestParser

_BODY = b'{"allowed":true,"permit":"p7f2d01c322ad9ece7ac5b21e","mode":"shared"}'
#: A ``RateLimitResponse`` with the code OK.
_OK = b"\x08\x01"
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/%s\r\ncontent-length: %d\r\n\r\n%s"


class Fixed(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, kind: bytes, body: bytes) -> None:
        self._answer = _ANSWER % (kind, len(body), body)
        self._parser = HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url, self.body = url, b""

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self._transport.write(self._answer)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Fixed(b"json", _BODY), "127.0.0.1", 0)
    for path in sys.argv[1:]:
        await loop.create_unix_server(lambda: Fixed(b"x-protobuf", _OK), path)
    sys.stdout.write(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
