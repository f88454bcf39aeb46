"""What failed calls of aiohttp say, with its real exceptions."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fuseboard.calling.classification import classify
from tests.agents.test_classification import flags

aiohttp = pytest.importorskip("aiohttp")

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def key() -> Any:
    from aiohttp.client_reqrep import ConnectionKey

    return ConnectionKey("vendor", 443, True, True, None, None, None)


def test_each_exception_of_aiohttp_is_in_the_table():
    refused = OSError(111, "refused")
    no_name = socket.gaierror(socket.EAI_NONAME, "no such name")
    for error, expected in (
        (aiohttp.ServerDisconnectedError(), "RT"),
        (aiohttp.ClientOSError(104, "reset"), "RT"),
        (aiohttp.ClientPayloadError("cut off"), "RT"),
        (aiohttp.ClientConnectionError("closed"), "RT"),
        (aiohttp.ClientConnectionResetError("reset"), "RT"),
        (aiohttp.ClientConnectorError(key(), refused), "RT"),
        (aiohttp.ClientProxyConnectionError(key(), refused), "RT"),
        (aiohttp.ServerTimeoutError("late"), "RT"),
        (aiohttp.SocketTimeoutError("late"), "RT"),
        (aiohttp.ConnectionTimeoutError("late"), "RT"),
        (aiohttp.ClientConnectorCertificateError(key(), ssl.SSLCertVerificationError()), "A"),
        (aiohttp.InvalidURL("vendor"), "A"),
        (aiohttp.NonHttpUrlClientError("ftp://vendor"), "A"),
    ):
        assert flags(error) == expected, repr(error)
    error = aiohttp.ClientConnectorDNSError(key(), no_name)
    error.__cause__ = no_name
    assert flags(error) == "A"
    assert not classify(aiohttp.ClientConnectorError(key(), refused)).sent
    assert classify(aiohttp.ServerDisconnectedError()).sent


async def failed(answer: bytes, use: Callable[[Any], Awaitable[object]], path: str = "/") -> Exception:
    """What a call raises that gets these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, aiohttp.ClientSession() as session:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - each library has its own
            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                await use(response)
    return caught.value


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def raise_for_status(response: Any) -> None:
    response.raise_for_status()


async def read_json(response: Any) -> None:
    await response.json()


@pytest.mark.parametrize(
    ("sent", "use", "expected"),
    [
        (answer("503 Busy"), raise_for_status, "RT"),
        (answer("429 Busy", b"", "Retry-After: 3"), raise_for_status, "RC"),
        (answer("404 No"), raise_for_status, ""),
        # The answer should be JSON and is a page.
        (answer("200 OK", b"<html>", "Content-Type: text/html"), read_json, "TA"),
        (answer("502 Bad", b"<html>", "Content-Type: text/html"), read_json, "RT"),
        (answer("200 OK", b"{", "Content-Type: application/json"), read_json, "TA"),
        # Half an answer, none, and one that is not HTTP: aiohttp says 400 for the last.
        (answer("200 OK", b"half")[:-2], lambda response: response.read(), "RT"),
        (b"", raise_for_status, "RT"),
        (b"HELLO\r\n\r\n", raise_for_status, "RT"),
        (answer("302 Found", b"", "Location: /"), raise_for_status, "A"),
    ],
)  # fmt: skip
async def test_what_a_real_answer_says(sent: bytes, use: Any, expected: str):
    error = await failed(sent, use)
    assert flags(error) == expected, repr(error)
