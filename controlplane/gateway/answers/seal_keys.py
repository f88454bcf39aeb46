"""Gives pods the keys with which they seal what they keep in Redis for repeated requests.

A token that is bound to a service gets the keys of this service. A token that is not bound can report any
service, so all of these tokens of an environment share other keys. See docs/adr/0043-sealed-answers.md.
"""

from collections.abc import Iterator

import msgspec
from django.conf import settings
from django.utils.crypto import salted_hmac

from controlplane.gateway.clock import Clock
from fuseboard.contract.seal_keys import KEY_ID_BYTES, MAX_KEYS, SealKey

#: An answer is kept for 3 days at most. A job can be delayed for 7 days, and dead for 7 more.
PERIOD_S = 7 * 86_400
#: Places of the keys that a pod gets. The next one too: another pod may seal with it a moment earlier.
_PERIODS = (0, -1, -2, 1)
_SALT = "fuseboard.seal"


def seal_keys(environment: str, service: str, period: int) -> list[SealKey]:
    """The first key seals. The keys of secret keys that are still accepted open what was sealed before."""
    return list(_keys(environment, service, period))[:MAX_KEYS]


def _keys(environment: str, service: str, period: int) -> Iterator[SealKey]:
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        for place in _PERIODS:
            # No name contains NUL, and the service of a token that is not bound is empty.
            named = f"{environment}\0{service}\0{period + place}"
            key, number = (
                salted_hmac(f"{_SALT}.{part}", named, secret=secret, algorithm="sha256").digest()
                for part in ("key", "id")
            )
            yield SealKey(id=number[:KEY_ID_BYTES], key=key)


class SealKeyParts:
    """The part of an answer with the keys. Nothing is stored: every gateway derives the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._period = -1
        #: Environment and service of the token -> the part, for one period.
        self._parts: dict[tuple[str, str], bytes] = {}

    def part(self, environment: str, bound_to: str) -> bytes:
        period = int(self._clock.wall() // PERIOD_S)
        if period != self._period:
            self._period, self._parts = period, {}
        found = self._parts.get((environment, bound_to))
        if found is None:
            found = b',"seal_keys":' + msgspec.json.encode(seal_keys(environment, bound_to, period))
            self._parts[environment, bound_to] = found
        return found
