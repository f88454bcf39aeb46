"""The heads of requests that have come before: a client sends nearly the same one each time.

Parsing a head costs more than all else that a listener does with a request. Equal bytes between two requests
mean the same to the parser, so only the first ones are parsed.
"""

from collections.abc import Mapping

from msgspec import Struct

from fuseboard.serving.exchange import Request

#: Heads that are remembered, and the most bytes of one. Together they bound the memory of a listener.
MAX_HEADS, MAX_HEAD_BYTES = 200, 1024

#: With these headers, more than a Content-Length decides where the body is.
_OTHER_BODIES = frozenset({"expect", "transfer-encoding", "upgrade"})

_END = b"\r\n\r\n"


class _Head(Struct, frozen=True, gc=False):
    method: str
    path: str
    headers: Mapping[str, str]
    #: The bytes of head and body.
    whole: int


class KnownHeads:
    """The heads of one listener, or of several with the same bounds."""

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def request_in(self, data: bytes, uid: int | None) -> Request | None:
        """The request that ``data`` is, if it comes between two others; ``None`` if the parser must look."""
        size = data.find(_END) + len(_END)
        head = self._heads.get(data[:size])
        if head is None or head.whole != len(data):
            return None
        return Request(method=head.method, path=head.path, headers=head.headers, body=data[size:], uid=uid)

    def learn(self, data: bytes, request: Request) -> None:
        """The parser has found ``request`` first in ``data``, between two others; the connection goes on.

        A head is learned if nobody can doubt its end: all its lines end in CR and LF, and ``data`` has
        nothing but it and the bytes that its Content-Length names.
        """
        size = data.find(_END) + len(_END)
        head, headers = data[:size], request.headers
        if (
            size <= MAX_HEAD_BYTES
            and size + int(headers.get("content-length", "0")) == len(data)
            and head.count(b"\r") == head.count(b"\n") == head.count(b"\r\n")
            and _OTHER_BODIES.isdisjoint(headers)
        ):
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[head] = _Head(request.method, request.path, headers, len(data))
