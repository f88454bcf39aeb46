"""The status of a gRPC call as an HTTP answer: its status, and the headers that ask to wait.

The statuses are those of ``google.rpc.Code``, but for two: a server without the method must not open the
breaker for the methods that it has, and a message that is too large is no limit on calls.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from fuseboard.calling.exception_paths import attribute, names
from fuseboard.calling.vendor_codes import NEVER_FITS

OK = "OK"
#: The call did not end in its time. The client says so too, when no answer comes.
LATE = "DEADLINE_EXCEEDED"
CANCELLED = "CANCELLED"
#: In the order of their numbers, from 0. An unknown name is ``UNKNOWN``.
STATUSES: dict[str, int] = {
    OK: 200,
    CANCELLED: 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    LATE: 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 404,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
_NAMES = tuple(STATUSES)
#: grpc itself ends a call so, when the code of the application raises before anything is sent.
_OWN_FAULTS = (
    "Exception serializing request",
    "Exception iterating requests",
    "Exception raised while intercepting the RPC",
)
#: The words of servers in C and in Go, of those in Java, and of those in .NET.
_TOO_LARGE = ("larger than max", "exceeds maximum size", "exceeds the maximum configured message size")
#: Text with milliseconds. A negative number, or no number, asks not to try again.
PUSHBACK = "grpc-retry-pushback-ms"
#: A ``google.rpc.Status`` with details, of which ``RetryInfo`` is one.
_DETAILS = "grpc-status-details-bin"

Metadata = Iterable[tuple[str, str | bytes]]


class RpcStatus(NamedTuple):
    """How a gRPC call ended: the name of its status, its details, and its trailing metadata."""

    name: str
    details: str = ""
    metadata: Metadata = ()

    @property
    def is_own_fault(self) -> bool:
        """Whether the code of this application ended the call, and not the server or the network."""
        return self.details.startswith(_OWN_FAULTS)

    @property
    def code(self) -> str:
        """The code to judge by: the name, or the code of a message that never fits."""
        if self.name == "RESOURCE_EXHAUSTED" and any(words in self.details for words in _TOO_LARGE):
            return NEVER_FITS
        return self.name


def name_of(number: int) -> str:
    """The name of the status with this number."""
    return _NAMES[number] if 0 <= number < len(_NAMES) else "UNKNOWN"


def rpc_status_of(error: BaseException) -> RpcStatus | None:
    """The status that an exception of grpc carries; ``None`` for another exception."""
    if not any(package == "grpc" for package, _ in names(error)):
        return None
    name = attribute(_answered(error, "code"), "name")
    if not isinstance(name, str):
        return None
    details, metadata = _answered(error, "details"), _answered(error, "trailing_metadata")
    pairs = metadata if isinstance(metadata, Iterable) else ()
    return RpcStatus(
        name,
        details if isinstance(details, str) else "",
        [pair for pair in pairs if isinstance(pair, tuple) and len(pair) == 2],
    )


def _answered(error: BaseException, name: str) -> object:
    """The answer of a method of the error. An error of an application may have none, or raise."""
    method = attribute(error, name)
    with suppress(Exception):
        return method() if callable(method) else None
    return None


def headers_of(metadata: Metadata) -> dict[str, str]:
    """The wait that the server asks for, as the headers that HTTP has for it."""
    headers: dict[str, str] = {}
    for key, value in metadata:
        if key == _DETAILS and isinstance(value, bytes):
            if wait_ms := _retry_info_ms(value):
                headers.setdefault("retry-after-ms", str(wait_ms))
        elif key == PUSHBACK:
            wait_ms = -1
            with suppress(ValueError):
                wait_ms = int(value)
            # The pushback is for this call, so it wins over the details.
            if wait_ms < 0:
                headers["x-should-retry"] = "false"
            else:
                headers["retry-after-ms"] = str(wait_ms)
    return headers


def _retry_info_ms(status: bytes) -> int:
    """The wait of a ``RetryInfo``; 0 without one, and without the packages of ``fuseboard[grpc]``."""
    try:
        from google.protobuf.message import DecodeError
        from google.rpc import error_details_pb2, status_pb2
    except ImportError:
        return 0
    info = error_details_pb2.RetryInfo()
    try:
        found = [info for one in status_pb2.Status.FromString(status).details if one.Unpack(info)]
    except DecodeError:
        return 0
    delay = info.retry_delay
    return max(0, int(delay.seconds * 1000 + delay.nanos // 1_000_000)) if found else 0
