"""Samples of refusals in a heartbeat: what a pod reports about some of the requests that it refused.

Who asked is in a sample only as digests, under a key that the control plane forgets after two days. An
endpoint is the template of a route, never a path with ids. A sample stands for ``weight`` refusals, itself
among them: so estimates are possible, and counts are in the counters only.
"""

import hmac
from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import Mode, Reason

#: A heartbeat with more is refused; pods send fewer.
MAX_SAMPLES = 64
#: The largest weight of one sample.
MAX_WEIGHT = 10**9
DIGEST_BYTES, DIGEST_KEY_BYTES = 8, 32

Text = Annotated[str, Meta(max_length=300)]
#: Hexadecimal; empty if the service passed no such subject.
Digest = Annotated[str, Meta(pattern=r"^([0-9a-f]{16})?\Z")]


class RefusalSample(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One refusal."""

    #: How long ago. Durations travel, because no clock of a pod is trusted.
    ago_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0
    rule: Text = ""
    dependency: Annotated[str, Meta(max_length=64)] = ""
    reason: Reason
    mode: Mode = Mode.SHARED
    tenant: Annotated[str, Meta(max_length=200)] = ""
    endpoint: Annotated[str, Meta(max_length=120)] = ""
    revision: Annotated[int, Meta(ge=0, le=2**40 - 1)] = 0
    retry_after_ms: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    ip: Digest = ""
    user: Digest = ""
    api_key: Digest = ""
    #: The trace of W3C Trace Context that was refused; empty for none.
    trace: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    weight: Annotated[float, Meta(ge=1, le=MAX_WEIGHT)] = 1.0


class DigestKey(Struct, frozen=True, kw_only=True):
    """The key with which pods of one environment make digests, on one day. Never written to disk by a pod."""

    key: Annotated[bytes, Meta(min_length=DIGEST_KEY_BYTES, max_length=DIGEST_KEY_BYTES)]


def digest_of(key: bytes, subject: str, value: str) -> str:
    """The digest of one subject, such as an address; empty for an empty value."""
    if not value:
        return ""
    message = f"{subject}\0{value}".encode(errors="replace")
    return hmac.digest(key, message, "sha256")[:DIGEST_BYTES].hex()
