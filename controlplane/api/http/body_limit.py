"""Limits the size of a request body: Django would first write any amount to disk.

How long a body may take is limited by `controlplane.http_limits`.
"""

import asyncio
import contextlib
import json
import re
from typing import Any

#: Forms and documents; Django's own limit, DATA_UPLOAD_MAX_MEMORY_SIZE, is the same.
MOST = 1_048_576
#: Plans: a row of each of 200,000 tenants.
MOST_OF_PLAN = 64 * MOST
#: A refused body is still read and discarded, within limits: closing the connection on a sending client
#: resets it, and the client would never read the response.
DRAINED = 2 * MOST_OF_PLAN
DRAINED_S = 5.0

_PLANS = re.compile(r"/api/v1/[^/]+/(?:plan|apply|what-if)|/import")


class _TooLarge(Exception):
    pass


class BodyLimit:
    """ASGI middleware in front of the application, which reads bodies whole."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        most = MOST_OF_PLAN if _PLANS.fullmatch(scope["path"]) else MOST
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > most:
            if length.isdigit() and len(length) <= 18 and int(length) <= DRAINED:
                await _drain(receive)
            await _refuse(send)
            return
        try:
            await self.app(scope, _limited(receive, most), send)
        except _TooLarge:
            await _drain(receive)
            await _refuse(send)


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


async def _refuse(send: Any) -> None:
    document = {
        "type": "urn:fuseboard:problem:content-too-large",
        "title": "Content Too Large",
        "status": 413,
        "detail": "The body is too large.",
    }
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})
