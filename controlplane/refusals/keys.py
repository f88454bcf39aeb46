"""The keys of refusal tokens: one per environment, service and day.

They are derived from ``FUSEBOARD_SECRET_KEY``, so nothing is stored, and a gateway and a web process need
not talk to each other. A pod gets the key of its service only, and can speak for no other.
"""

from collections.abc import Iterator

from django.conf import settings
from django.utils.crypto import salted_hmac

from fuseboard.contract.refusal_token import KEY_ID_BYTES, RefusalKey

DAY_S = 86_400
#: Days that a key is accepted after its own: a pod without a control plane keeps its last key.
ACCEPTED_DAYS = 8

_SALT = "fuseboard.refusal-token"


def day_at(wall: float) -> int:
    """The day of a moment in unix time."""
    return int(wall // DAY_S)


def key_of(environment: str, service: str, day: int, *, secret: str | None = None) -> RefusalKey:
    """The key of a service on one day. A new secret key makes new ones."""
    # No name contains NUL.
    named = f"{environment}\0{service}\0{day}"
    key = salted_hmac(f"{_SALT}.key", named, secret=secret, algorithm="sha256").digest()
    key_id = salted_hmac(f"{_SALT}.id", named, secret=secret, algorithm="sha256").digest()
    return RefusalKey(day=day, id=key_id[:KEY_ID_BYTES], key=key)


def keys_of(environment: str, service: str, day: int) -> Iterator[RefusalKey]:
    """The key of each secret key that is still accepted."""
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        yield key_of(environment, service, day, secret=secret)
