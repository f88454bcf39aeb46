"""Bounds of a client, and the answer when it exceeds them."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one client. Sizes are counted in slices: a client may exceed them by up to two slices."""

    #: A safety net for all paths, with the frames of chunks. Applications count exactly, without them.
    body_bytes: int
    #: From the end of the head to the end of the body.
    body_s: float
    head_bytes: int = 65_536
    #: From the first byte of a head to its last, and from the connection to its first request.
    head_s: float = 20.0
    #: How long a client may leave an answer unread, once the buffers are full or the server closes.
    unread_s: float = 60.0
    #: Whether a GET without a body may become a WebSocket.
    websockets: bool = False


class Refusal:
    """An answer after which the connection closes."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        self.status, self.detail = status, detail
        body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail})
        self.answer = (
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}"
        ).encode("ascii")


NOT_HTTP = Refusal(400, "Bad Request", "This is not a valid HTTP request.")
NO_UPGRADE = Refusal(400, "Bad Request", "This request cannot change the protocol.")
NO_TRAILERS = Refusal(400, "Bad Request", "Header fields after the body are not accepted.")
TOO_SLOW = Refusal(408, "Request Timeout", "The request did not arrive in time.")
BODY_TOO_LARGE = Refusal(413, "Content Too Large", "The body is too large.")
HEAD_TOO_LARGE = Refusal(431, "Request Header Fields Too Large", "The head of the request is too large.")
