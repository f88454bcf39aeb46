"""One HTTP request to a receiver that a person typed in: to a public address, within a time, no redirects.

The name is resolved once, every address of it is judged, and the connection goes to one that was judged, so
that a name whose addresses change between a check and its use gains nothing. Host, SNI and the check of the
certificate keep the name.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import httpcore

from controlplane.alerts.delivery.addresses import AddressRefused, Network, is_public

CONNECT_S = 5.0
#: The time for everything: resolving, connecting, sending, and the first bytes of the answer.
MAX_S = 15.0
#: Bytes of an answer that are read.
MAX_READ = 4_096


class NotDelivered(Exception):
    """The receiver was not reached, or did not answer in time. The message has no secrets."""


@dataclass(frozen=True)
class Answer:
    status: int
    #: The beginning of the body.
    text: str
    #: The wait that the receiver asks for, in seconds; 0 for nothing.
    retry_after_s: float = 0.0


def post(
    url: str,
    body: bytes,
    headers: dict[str, str],
    *,
    allowed: Iterable[Network] = (),
    context: ssl.SSLContext | None = None,
    most_s: float = MAX_S,
) -> Answer:
    """Send one request, without a proxy. Raises ``AddressRefused`` or ``NotDelivered``."""
    ends = time.monotonic() + most_s
    backend = _PublicOnly(tuple(allowed), ends)
    sent = [("Host", urlsplit(url).netloc.rpartition("@")[2]), *headers.items()]
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=context or ssl.create_default_context(),
                max_connections=1,
                max_keepalive_connections=0,
                network_backend=backend,
            ) as pool,
            pool.stream("POST", url, headers=sent, content=body) as response,
        ):
            text = _beginning(response.iter_stream())
            return Answer(response.status, text, _retry_after(response.headers))
    except AddressRefused:
        raise
    except (
        httpcore.NetworkError,
        httpcore.TimeoutException,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as error:
        raise NotDelivered(f"{type(error).__name__}: {str(error)[:200]}".rstrip(": ")) from error


def _beginning(chunks: Iterable[bytes]) -> str:
    found = b""
    for chunk in chunks:
        found += chunk
        if len(found) >= MAX_READ:
            break
    # Postgres stores no NUL.
    return found[:MAX_READ].decode("utf-8", "replace").replace("\0", "\ufffd")


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> float:
    """Whole seconds, as most receivers send it; a date counts as nothing."""
    for name, value in headers:
        if name.lower() == b"retry-after" and value.strip().isdigit() and len(value) < 10:
            return float(value)
    return 0.0


class _PublicOnly(httpcore.NetworkBackend):
    """Connects to addresses that are public or allowed, until a time."""

    def __init__(self, allowed: tuple[Network, ...], ends: float) -> None:
        self._allowed, self._ends = allowed, ends
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        addresses = _resolve(host, port, min(CONNECT_S, _left(self._ends)))
        for address in addresses:
            if not is_public(address, self._allowed):
                raise AddressRefused(host, address)
        last: httpcore.NetworkError | httpcore.TimeoutException | None = None
        for address in addresses:
            try:
                stream = self._plain.connect_tcp(
                    address,
                    port,
                    timeout=min(CONNECT_S, _left(self._ends)),
                    local_address=local_address,
                    socket_options=socket_options,
                )
            except (httpcore.NetworkError, httpcore.TimeoutException) as error:
                last = error
            else:
                return _Bounded(stream, self._ends)
        raise last or httpcore.ConnectError(f"the name {host} has no address")

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore.NetworkStream:
        raise httpcore.ConnectError("a webhook connects to no local socket")


class _Bounded(httpcore.NetworkStream):
    """A stream of which every step ends in time, also if bytes arrive one by one."""

    def __init__(self, stream: httpcore.NetworkStream, ends: float) -> None:
        self._stream, self._ends = stream, ends

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._ends))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._ends))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Bounded(
            self._stream.start_tls(ssl_context, server_hostname, min(CONNECT_S, _left(self._ends))),
            self._ends,
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _resolve(host: str, port: int, within_s: float) -> list[str]:
    """The addresses of a name. The resolver of the system has no deadline: it may wait 30 s for a server."""
    found: SimpleQueue[list[str] | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            found.put(list(dict.fromkeys(str(one[4][0]) for one in answers)))
        except (OSError, UnicodeError) as error:
            found.put(error)

    # A daemon, so that the end of the process does not wait for it.
    threading.Thread(target=ask, name="resolver", daemon=True).start()
    try:
        addresses = found.get(timeout=within_s)
    except Empty:
        raise httpcore.ConnectTimeout(f"the name {host} was not resolved within {within_s:.1f} s") from None
    if isinstance(addresses, Exception):
        raise httpcore.ConnectError(f"the name {host} cannot be resolved") from addresses
    return addresses


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the receiver did not answer in time")
    return left
