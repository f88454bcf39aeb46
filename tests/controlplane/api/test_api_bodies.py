"""How much of a body is read."""

import json
import re
from typing import Any

import pytest

from controlplane.api.http.body_limit import MAX_BODY, BodyLimit


async def reader(scope: Any, receive: Any, send: Any) -> None:
    """Reads all of it, as Django does, and returns its length."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def ask(
    parts: list[bytes],
    *,
    path: str = "/api/v1/production/tenants",
    length: bytes | None = None,
    drained: list[bytes] | None = None,
) -> tuple[int, bytes]:
    """``length=None`` sends chunks."""
    headers = [(b"content-length", length) if length is not None else (b"transfer-encoding", b"chunked")]
    start, body = await answer(parts, path=path, headers=headers, drained=drained)
    return start["status"], body


async def answer(
    parts: list[bytes],
    *,
    path: str = "/api/v1/production/tenants",
    headers: list[tuple[bytes, bytes]],
    drained: list[bytes] | None = None,
) -> tuple[Any, bytes]:
    left, sent = list(parts) if drained is None else drained, []

    async def receive() -> Any:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    await BodyLimit(reader)({"type": "http", "path": path, "headers": headers}, receive, send)
    return sent[0], sent[1]["body"]


async def test_a_body_of_the_usual_size_is_read() -> None:
    assert await ask([b"x" * MAX_BODY]) == (200, str(MAX_BODY).encode())
    assert await ask([b"{}"], length=b"2") == (200, b"2")


@pytest.mark.parametrize("length", [str(MAX_BODY + 1).encode(), b"9" * 40, b"-1", b"1e9", b"\xc2\xb2", b""])
async def test_a_bad_or_excessive_length_is_refused_unread(length: bytes) -> None:
    status, body = await ask([], length=length)
    assert status == 413
    assert json.loads(body)["type"] == "urn:fuseboard:problem:content-too-large"


@pytest.mark.parametrize("length", [None, str(8 * MAX_BODY).encode()])
async def test_a_body_that_is_too_large_is_drained_and_refused(length: bytes | None) -> None:
    """A client that is still sending when the connection closes gets a reset, not a response."""
    parts = [b"x" * MAX_BODY] * 8
    assert (await ask(parts, length=length, drained=parts))[0] == 413
    assert parts == []


async def test_a_body_without_a_length_is_cut_off() -> None:
    status, _ = await ask([b"x" * 65_536] * 100)
    assert status == 413


@pytest.mark.parametrize("given", [b"order-17", b"", b" a line\n", b"-begins-with-no-letter"])
async def test_a_refusal_has_the_id_of_its_request(given: bytes) -> None:
    """Each answer has an id, also one that never reached Django."""
    asked = [(b"content-length", str(MAX_BODY + 1).encode()), (b"x-request-id", given)]
    start, _ = await answer([], headers=asked)
    found = dict(start["headers"])[b"x-request-id"]
    assert found == given if given == b"order-17" else re.fullmatch(rb"[0-9a-f]{32}", found)
