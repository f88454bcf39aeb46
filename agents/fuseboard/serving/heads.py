"""The heads of requests that have come before: a client sends nearly the same one each time.

Parsing a head costs more than all else that a listener does with a request. Equal bytes between two requests
mean the same to the parser, so only the first ones are parsed.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from fuseboard.serving.exchange import Request

#: Heads that are remembered, and the most bytes of one. Together they bound the memory of a listener.
MAX_HEADS, MAX_HEAD_BYTES = 200, 1024

#: With these headers, more than the bytes of the body follows the head.
_MORE = frozenset({"expect", "trailer", "upgrade"})

_END = b"\r\n\r\n"
#: Envoy sends a body as one chunk.
_CHUNK, _LAST_CHUNK = re.compile(rb"([0-9a-f]{1,4})\r\n"), b"\r\n0\r\n\r\n"


class _Head(Struct, frozen=True, gc=False):
    method: str
    path: str
    headers: Mapping[str, str]
    #: The bytes of head and body; ``None`` for a body in chunks.
    whole: int | None


class KnownHeads:
    """The heads of one listener, or of several with the same bounds."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._heads: dict[bytes, _Head] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def request_in(self, data: bytes, uid: int | None) -> Request | None:
        """The request that ``data`` is, if it comes between two others; ``None`` if the parser must look."""
        size = data.find(_END) + len(_END)
        head = self._heads.get(data[:size])
        if head is None:
            return None
        body = data[size:] if head.whole == len(data) else None
        if head.whole is None:
            body = _only_chunk(data, size)
        if body is None or len(body) > self._max_body_bytes:
            return None
        return Request(method=head.method, path=head.path, headers=head.headers, body=body, uid=uid)

    def learn(self, data: bytes, request: Request) -> None:
        """The parser has found ``request`` first in ``data``, between two others; the connection goes on.

        A head is learned if its end is beyond doubt: all its lines end in CR and LF, and ``data`` has
        nothing but it and the bytes that its Content-Length names, or one chunk.
        """
        size = data.find(_END) + len(_END)
        head, headers = data[:size], request.headers
        coding = headers.get("transfer-encoding")
        if coding is None:
            fits = size + int(headers.get("content-length", "0")) == len(data)
        else:
            fits = coding == "chunked" and _only_chunk(data, size) == request.body
        if (
            fits
            and size <= MAX_HEAD_BYTES
            and head.count(b"\r") == head.count(b"\n") == head.count(b"\r\n")
            and _MORE.isdisjoint(headers)
        ):
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            whole = len(data) if coding is None else None
            self._heads[head] = _Head(request.method, request.path, headers, whole)


def _only_chunk(data: bytes, begin: int) -> bytes | None:
    """The body that begins there, if it is one chunk and ends with ``data``."""
    size = _CHUNK.match(data, begin)
    if size is None:
        return None
    end = size.end() + int(size[1], 16)
    return data[size.end() : end] if end > size.end() and data[end:] == _LAST_CHUNK else None
