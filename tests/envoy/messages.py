"""Requests of Envoy's rate limit filters, and answers to them."""

from collections.abc import Sequence
from typing import Any

from fuseboard.envoy import rls_pb2 as pb

OK, OVER = pb.RateLimitResponse.OK, pb.RateLimitResponse.OVER_LIMIT


def descriptor(
    *entries: tuple[str, str], hits: int | None = None, stated: tuple[int, Any] | None = None, **more: Any
) -> pb.RateLimitDescriptor:
    """``stated`` is a limit that Envoy brings: requests and unit."""
    made = pb.RateLimitDescriptor(
        entries=[
            pb.RateLimitDescriptor.Entry(key=key.encode(), value=value.encode()) for key, value in entries
        ],
        **more,
    )
    if hits is not None:
        made.hits_addend.value = hits
    if stated is not None:
        made.limit.requests_per_unit, made.limit.unit = stated
    return made


def request(*descriptors: pb.RateLimitDescriptor, domain: str = "edge", hits: int = 0) -> bytes:
    """The bytes of a request."""
    message = pb.RateLimitRequest(domain=domain.encode(), descriptors=descriptors, hits_addend=hits)
    return message.SerializeToString()


def codes(answer: pb.RateLimitResponse) -> tuple[int, list[int]]:
    """The code of the whole, and those of the descriptors."""
    return answer.overall_code, [status.code for status in answer.statuses]


def headers(answer: pb.RateLimitResponse) -> dict[str, str]:
    return {header.key: header.value for header in answer.response_headers_to_add}


def remaining(answer: pb.RateLimitResponse) -> Sequence[int]:
    return [status.limit_remaining for status in answer.statuses]
