"""An answer of the gateway, without the code that asks it: only a pod with a gateway loads that."""

from msgspec import Struct


class ResponseError(Exception):
    """The response is invalid: no HTTP, too long, too late, or cut short."""


class HttpResponse(Struct, frozen=True):
    status: int
    content_type: str
    retry_after: str
    body: bytes
