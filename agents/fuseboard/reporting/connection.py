"""One keep-alive connection to the gateway, with the standard library, bounded in time and size.

``http.client`` alone has a timeout per read: a peer that sends a byte a second would block the thread
forever. Here all reads of a response share one deadline.
"""

import http.client
import io
import socket
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fuseboard.reporting.http_response import HttpResponse, ResponseError
from fuseboard.store.tls import tls_context

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: A larger response is refused while it is read. Enough for a policy of 8 MiB and tenants.
MAX_RESPONSE_BYTES = 12 * 1024 * 1024


class Connection:
    """Posts JSON to one URL. For one thread. A redirect is a response like any other."""

    def __init__(
        self,
        url: str,
        *,
        headers: dict[str, str],
        timeout_s: float,
        total_s: float,
        max_bytes: int = MAX_RESPONSE_BYTES,
        ca_file: str = "",
    ) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._headers = {**headers, "Content-Type": "application/json", "Accept": "application/json"}
        self._timeout_s, self._total_s, self._max_bytes = timeout_s, total_s, max_bytes
        self._deadline = 0.0
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=tls_context(ca_file)
            )
        else:
            self._http = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._http.response_class = self._response  # type: ignore[assignment]

    def authorize(self, token: str) -> None:
        """Send this token from now on."""
        self._headers["Authorization"] = f"Bearer {token}"

    def post(self, body: bytes) -> HttpResponse:
        """Send ``body`` and read the whole response.

        Raises ``OSError`` (refused, reset, ``TimeoutError``, a certificate that does not match) or
        ``ResponseError``. A kept connection that the peer has closed
        is opened again once: the peer never read the request.
        """
        kept = self._http.sock is not None
        self._deadline = monotonic() + self._total_s
        try:
            try:
                return self._exchange(body)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if not kept:
                    raise
                self.close()
                return self._exchange(body)
        except BaseException as error:
            self.close()
            if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
                raise ResponseError(f"{type(error).__name__}: {error}") from error
            raise

    def close(self) -> None:
        self._http.close()

    def _exchange(self, body: bytes) -> HttpResponse:
        if self._http.sock is not None:
            self._http.sock.settimeout(self._timeout_s)
        self._http.request("POST", self._path, body=body, headers=self._headers)
        with self._http.getresponse() as response:
            content = response.read(self._max_bytes + 1)
            if len(content) > self._max_bytes:
                raise ResponseError(f"answer of more than {self._max_bytes} bytes")
            if response.length:
                raise ResponseError("answer cut short")
            return HttpResponse(
                status=response.status,
                content_type=response.headers.get_content_type(),
                retry_after=response.headers.get("Retry-After", ""),
                body=content,
            )

    def _response(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(sock, debuglevel, method, url)
        raw = response.fp.detach()
        response.fp = io.BufferedReader(_Bounded(raw, sock, self._left))
        return response

    def _left(self) -> float:
        """Seconds the next read may take. Raises ``TimeoutError`` when no time is left."""
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {self._total_s:g} s")
        return min(left, self._timeout_s)


class _Bounded(io.RawIOBase):
    """The reading half of a socket. Each read gets the rest of the deadline."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, left: Callable[[], float]) -> None:
        self._raw, self._sock, self._left = raw, sock, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int | None:
        self._sock.settimeout(self._left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        # Closing the inner file releases the socket after "Connection: close".
        if not self.closed:
            self._raw.close()
        super().close()
