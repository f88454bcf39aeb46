"""An override sent to the gateways while Postgres and Redis are both down.

Gateways keep it in memory and serve it with the configuration.
"""

import secrets
import time
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta, Struct

from controlplane.audit.actor import Actor, Origin
from controlplane.fleet import signing
from controlplane.fleet.gateway_urls import gateway_urls
from controlplane.validation import Problems
from fuseboard.contract.words import Slug

log = structlog.get_logger(__name__)

PATH = "/control/v1/hold"
MAX_BODY_BYTES = 8_192
LONGEST = timedelta(minutes=15)
#: Per gateway. An operator is waiting for the page.
TIMEOUT_S = 2.0

_SALT = "controlplane.breakers.handed"


class HandedOverride(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A breaker that is forced open: until when, by whom and why."""

    #: Milliseconds since the epoch and a random part, so that it is adopted once.
    id: Annotated[str, Meta(pattern=r"^[0-9]{13}-[0-9a-f]{16}\Z")]
    environment: Slug
    dependency: Slug
    reason: Annotated[str, Meta(min_length=1, max_length=500)]
    expires_at_us: Annotated[int, Meta(ge=1, le=2**53)]
    actor: Annotated[str, Meta(min_length=1, max_length=200)]
    role: Annotated[str, Meta(max_length=32)]
    origin: Origin
    address: Annotated[str, Meta(max_length=64)] = ""


class NotHanded(Exception):
    """No gateway accepted the override. The message says why."""


def hand_over(
    *, environment: str, dependency: str, reason: str, expires_at: datetime, actor: Actor
) -> tuple[int, int]:
    """Send a forced-open override to every gateway. Return how many accepted it, of how many.

    Raises ``InvalidEdit``, or ``NotHanded`` when no gateway accepted it.
    """
    problems = Problems()
    problems.slug("dependency", dependency)
    problems.reason(reason)
    too_late = "Choose a time at most 15 minutes from now while Postgres and Redis are down."
    problems.end("expires_at", expires_at, LONGEST, too_late)
    problems.settle()
    urls = gateway_urls()
    if not urls:
        raise NotHanded("FUSEBOARD_GATEWAY_URL is not set, so no gateway can keep the override")
    body = msgspec.json.encode(
        HandedOverride(
            id=f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(8)}",
            environment=environment,
            dependency=dependency,
            reason=reason,
            expires_at_us=int(expires_at.timestamp() * 1_000_000),
            actor=actor.name,
            role=actor.role,
            origin=actor.origin,
            address=actor.address,
        )
    )
    failures = [failure for url in urls if (failure := _post(url, body))]
    if len(failures) == len(urls):
        raise NotHanded("; ".join(failures))
    log.warning("breaker.held_in_memory", environment=environment, dependency=dependency, failures=failures)
    return len(urls) - len(failures), len(urls)


def signature(body: bytes, *, secret: str | None = None) -> str:
    """Return the Authorization header for this body."""
    return signing.sign(body, salt=_SALT, secret=secret)


def is_signed(body: bytes, authorization: bytes) -> bool:
    """Return whether a web process of this control plane signed the body."""
    return signing.is_signed(body, authorization, salt=_SALT)


def _post(url: str, body: bytes) -> str:
    """Return why the gateway at ``url`` did not accept it; empty if it did."""
    try:
        signing.post(url, PATH, body, salt=_SALT, timeout_s=TIMEOUT_S, most_bytes=1_000)
    except signing.GatewayCallFailed as error:
        return str(error)
    return ""
