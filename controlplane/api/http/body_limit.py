"""Limits the size of a request body: Django would first write any amount to disk.

More than 1 MiB is read only where files are sent, and only from callers who may send them, see
``large_bodies``. How long a body may take is limited by `controlplane.http_limits`.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from controlplane.api.http.large_bodies import LOG_IN, RETRY_S, LargeBodies, Refused
from controlplane.request_ids import HEADER, id_of

#: Forms and documents; Django's own limit, DATA_UPLOAD_MAX_MEMORY_SIZE, is the same.
MAX_BODY = 1_048_576
#: Plans: a row of each of 200,000 tenants.
MAX_OF_PLAN = 64 * MAX_BODY
#: After a refusal the body is still read and discarded, within limits: closing the connection on a sending
#: client resets it, and the client would never read the response.
DRAINED = 2 * MAX_OF_PLAN
DRAINED_S = 5.0

TOO_LARGE = (413, "The body is too large.")

_PLANS = re.compile(r"/api/v1/[^/]+/(?:plan|apply|what-if)|(?:/env/[^/]+)?/import")


class _TooLarge(Exception):
    pass


class BodyLimit:
    """ASGI middleware in front of the application, which reads bodies whole.

    ``refused`` gets the status of each request that never reaches the application.
    """

    def __init__(self, app: Any, refused: Callable[[int], None] = lambda status: None) -> None:
        self.app = app
        self._refused = refused
        self._large = LargeBodies()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        takes_files = _PLANS.fullmatch(scope["path"]) is not None
        most = MAX_OF_PLAN if takes_files else MAX_BODY
        length = _length_of(scope)
        if length is not None and length > most:
            await self._refuse(scope, receive, send, *TOO_LARGE)
        elif takes_files and (length is None or length > MAX_BODY):
            await self._read_large(scope, receive, send, chunked=length is None)
        else:
            await self._read(scope, receive, send, most, TOO_LARGE)

    async def _read_large(self, scope: Any, receive: Any, send: Any, *, chunked: bool) -> None:
        caller = await self._large.admit(scope)
        if isinstance(caller, str):
            try:
                await self._read(scope, receive, send, MAX_OF_PLAN, TOO_LARGE)
            finally:
                self._large.done(caller)
        elif chunked and caller[0] != LOG_IN[0]:
            # Chunks announce no length. This caller is known, and may send a small body.
            await self._read(scope, receive, send, MAX_BODY, caller)
        else:
            await self._refuse(scope, receive, send, *caller)

    async def _read(self, scope: Any, receive: Any, send: Any, most: int, too_large: Refused) -> None:
        try:
            await self.app(scope, _limited(receive, most), send)
        except _TooLarge:
            await self._refuse(scope, receive, send, *too_large)

    async def _refuse(self, scope: Any, receive: Any, send: Any, status: int, detail: str) -> None:
        """Answer at once, then discard what still arrives, and close."""
        self._refused(status)
        # Python names 413 as an older RFC did.
        title = "Content Too Large" if status == 413 else HTTPStatus(status).phrase
        kind = f"urn:fuseboard:problem:{title.lower().replace(' ', '-')}"
        body = json.dumps({"type": kind, "title": title, "status": status, "detail": detail}).encode()
        given = dict(scope["headers"]).get(HEADER.lower().encode(), b"").decode("latin-1")
        headers = [
            *_HEADERS,
            (b"content-length", b"%d" % len(body)),
            (HEADER.lower().encode(), id_of(given).encode()),
        ]
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="fuseboard"'))
        if status in (429, 503):
            headers.append((b"retry-after", b"%d" % RETRY_S))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await _drain(receive)
        await send({"type": "http.response.body", "body": b""})


_HEADERS = [
    (b"content-type", b"application/problem+json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"connection", b"close"),
]


def _length_of(scope: Any) -> int | None:
    """The announced length; ``None`` for chunks. An invalid length counts as too large."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() and len(length) <= 18 else 2**63


async def _drain(receive: Any) -> None:
    left = DRAINED
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _limited(receive: Any, most: int) -> Any:
    left = most

    async def limited() -> Any:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _TooLarge
        return message

    return limited
