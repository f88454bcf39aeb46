"""Error answers as RFC 9457 documents."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fuseboard.contract.sync import MAX_BODY_BYTES

_T = TypeVar("_T")
_PATH = re.compile(r"(?: - at | in )`\$\.?([^`]*)`$")


@dataclass(eq=False)
class Problem(Exception):
    """An error that answers a request."""

    status: int
    title: str
    detail: str
    #: Where in the body, as ``counters.requests`` or ``want[3]``.
    field: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def document(self) -> bytes:
        body = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}
        return msgspec.json.encode(body | {"field": self.field} if self.field else body)


def unauthorized() -> Problem:
    """One answer for every wrong token. It does not reveal which part is wrong."""
    return Problem(
        401,
        "Unauthorized",
        "Send a valid token of this environment as 'Authorization: Bearer fb_...'.",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def unsigned() -> Problem:
    return Problem(401, "Unauthorized", "The body must be signed by a web process with the same secret key.")


def decoded(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """The document in a body. Raises ``Problem``."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None


def wrong_environment(environment: str) -> Problem:
    detail = f"This token does not belong to environment {environment!r}."
    return Problem(403, "Forbidden", detail, field="environment")


def wrong_service(service: str, bound: str) -> Problem:
    detail = (
        f"This token is for pods of service {bound!r} only, not {service!r}. Use a token of this service."
    )
    return Problem(403, "Forbidden", detail, field="service")


def wrong_name(server: str, prefix: str) -> Problem:
    detail = (
        f"This token is for pods whose names begin with {prefix!r} only, not {server!r}."
        " Set FUSEBOARD_SERVER, or use another token."
    )
    return Problem(403, "Forbidden", detail, field="server")


def not_found() -> Problem:
    return Problem(404, "Not Found", "The gateway serves /agent/v1/sync, /healthz, /readyz and /metrics.")


def wrong_method(allowed: bytes) -> Problem:
    detail = f"Use {allowed.decode()} here."
    return Problem(405, "Method Not Allowed", detail, headers=((b"allow", allowed),))


def too_large(most: int = MAX_BODY_BYTES) -> Problem:
    # The rest of the body is not read, so the connection cannot be used again.
    detail = f"A body has at most {most} bytes."
    return Problem(413, "Content Too Large", detail, headers=((b"connection", b"close"),))


def wrong_media_type() -> Problem:
    return Problem(415, "Unsupported Media Type", "Send uncompressed 'Content-Type: application/json'.")


def malformed(error: Exception) -> Problem:
    return Problem(400, "Bad Request", f"The body is not a JSON document: {error}.")


def invalid(error: msgspec.ValidationError) -> Problem:
    """Name the field that msgspec's message ends with."""
    message = str(error)
    match = _PATH.search(message)
    where = match.group(1) if match else ""
    return invalid_field(where, message[: match.start()] if match else message)


def invalid_field(where: str, detail: str) -> Problem:
    named = f"{where}: {detail}" if where else detail
    return Problem(422, "Unprocessable Content", named, field=where)


def too_many(wait_s: float) -> Problem:
    detail = "Too many requests. Try again after the time in Retry-After."
    return Problem(429, "Too Many Requests", detail, headers=(_retry_after(wait_s),))


def too_many_new_pods(wait_s: float, per_min: int) -> Problem:
    detail = (
        f"This token has brought {per_min} pods with new names to this gateway within a minute. Try again"
        " after the time in Retry-After, or raise FUSEBOARD_NEW_PODS_PER_MIN at the gateway."
    )
    return Problem(429, "Too Many Requests", detail, field="server", headers=(_retry_after(wait_s),))


def not_ready(detail: str) -> Problem:
    return Problem(503, "Service Unavailable", detail, headers=(_retry_after(1.0),))


def _retry_after(wait_s: float) -> tuple[bytes, bytes]:
    return (b"retry-after", str(max(1, -int(-wait_s // 1))).encode())
