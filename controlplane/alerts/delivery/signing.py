"""Signatures of webhooks, as Standard Webhooks describes them (https://www.standardwebhooks.com).

The secret of a receiver is derived from ``FUSEBOARD_SECRET_KEY`` and is stored nowhere.
"""

import hmac
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence

from django.conf import settings
from django.utils.crypto import salted_hmac

_SALT = "fuseboard.webhook"


def secret_of(receiver: int, version: int) -> str:
    """The secret that a person copies to the receiver: ``whsec_`` and 32 bytes in base64."""
    return _secrets(receiver, version)[0]


def headers_of(
    body: bytes, *, identity: str, at: int, receiver: int, versions: Sequence[int]
) -> dict[str, str]:
    """The headers of one attempt. ``identity`` is the same for every attempt; ``at`` is in unix seconds.

    During a change of the secret, ``versions`` has the old one too, and both signatures are sent. The same
    is done for every secret key of this installation that is still accepted.
    """
    secrets = [secret for version in versions for secret in _secrets(receiver, version)]
    return signed_headers(body, identity=identity, secrets=secrets, at=at)


def signed_headers(
    body: bytes, *, identity: str, secrets: Sequence[str], at: int | None = None
) -> dict[str, str]:
    """The headers of one attempt, signed with each of the secrets. ``at`` is now unless it is given."""
    at = int(time.time()) if at is None else at
    signed = f"{identity}.{at}.".encode() + body
    signatures = [b64encode(hmac.digest(_key(secret), signed, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


def _secrets(receiver: int, version: int) -> list[str]:
    return [
        "whsec_"
        + b64encode(
            salted_hmac(_SALT, f"{receiver}:{version}", secret=secret, algorithm="sha256").digest()
        ).decode()
        for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    ]


def _key(secret: str) -> bytes:
    return b64decode(secret.removeprefix("whsec_"))
