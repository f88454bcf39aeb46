"""Limits the size and duration of a request body: Django would first write any amount to disk."""

import asyncio
import contextlib
import json
import re
import time
from typing import Any

#: Forms and documents; Django's own limit, DATA_UPLOAD_MAX_MEMORY_SIZE, is the same.
MOST = 1_048_576
#: Plans: a row of each of 200,000 tenants.
MOST_OF_PLAN = 64 * MOST
#: The whole body must have come within this many seconds.
WITHIN_S = 60.0
#: A refused body is still read and discarded, within limits: closing the connection on a sending client
#: resets it, and the client would never read the response.
DRAINED = 2 * MOST_OF_PLAN
DRAINED_S = 5.0

_PLANS = re.compile(r"/api/v1/[^/]+/(?:plan|apply|what-if)|/import")

_TOO_LARGE = (413, "Content Too Large", "content-too-large", "The body is too large.")
_TOO_SLOW = (408, "Request Timeout", "request-timeout", "The body did not come in time.")


class _Refused(Exception):
    def __init__(self, answer: tuple[int, str, str, str]) -> None:
        self.answer = answer


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
            await _refuse(send, _TOO_LARGE)
            return
        try:
            await self.app(scope, _limited(receive, most), send)
        except _Refused as refused:
            if refused.answer is _TOO_LARGE:
                await _drain(receive)
            await _refuse(send, refused.answer)


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
    left, until, done = most, time.monotonic() + WITHIN_S, False

    async def limited() -> Any:
        nonlocal left, done
        if done:
            return await receive()
        try:
            async with asyncio.timeout(until - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise _Refused(_TOO_SLOW) from None
        left -= len(message.get("body", b""))
        if left < 0:
            raise _Refused(_TOO_LARGE)
        done = not message.get("more_body", False)
        return message

    return limited


async def _refuse(send: Any, answer: tuple[int, str, str, str]) -> None:
    status, title, kind, detail = answer
    document = {
        "type": f"urn:fuseboard:problem:{kind}",
        "title": title,
        "status": status,
        "detail": detail,
    }
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})
