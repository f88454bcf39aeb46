"""Whether a refusal token is genuine, and of which environment and service."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings

from controlplane.refusals.keys import ACCEPTED_DAYS, DAY_S, keys_of
from controlplane.refusals.models import RefusalService
from fuseboard.contract.portable import Portable
from fuseboard.contract.refusal_token import RefusalToken, TokenError, read_token

#: Services of one environment; gateways give no keys to more.
MAX_SERVICES = 1_000
#: A pod may see the next day this much before or after the gateway.
_SKEW_MS = 300_000


class NotOurToken(Portable, Exception):
    """Forged, cut, or of another installation. One answer for all of these."""

    def __init__(self) -> None:
        super().__init__(
            "This is not a token of this installation, or part of it is missing."
            " Copy the whole header Fuseboard-Refusal. Tokens from before a change of"
            " FUSEBOARD_SECRET_KEY need the earlier key in FUSEBOARD_SECRET_KEY_FALLBACKS."
        )


class ExpiredToken(Portable, Exception):
    """Genuine, and older than what is explained."""

    def __init__(self, at: datetime) -> None:
        self.at = at
        super().__init__(
            f"This token has expired. It is from {at.day} {at:%B %Y}, and tokens are explained for"
            f" {settings.REFUSAL_TOKEN_DAYS} days."
        )


@dataclass(frozen=True, kw_only=True)
class GenuineToken:
    """A token that a pod of this service made."""

    environment: str
    service: str
    key: bytes
    token: RefusalToken
    #: When the request was refused.
    at: datetime


def find_token(text: str, environments: Collection[str], now: datetime) -> GenuineToken:
    """The token, if it is of one of these environments. Raises ``NotOurToken`` or ``ExpiredToken``."""
    try:
        token = read_token(text)
    except TokenError:
        raise NotOurToken from None
    found = _signer_of(token, environments)
    if found is None or not _is_of_its_day(token):
        raise NotOurToken
    environment, service, key = found
    at = datetime.fromtimestamp(token.at_ms / 1000, UTC)
    if now - at > timedelta(days=settings.REFUSAL_TOKEN_DAYS):
        raise ExpiredToken(at)
    return GenuineToken(environment=environment, service=service, key=key, token=token, at=at)


def _signer_of(token: RefusalToken, environments: Collection[str]) -> tuple[str, str, bytes] | None:
    services = RefusalService.objects.filter(environment__in=list(environments)).order_by("-last_on", "pk")
    rows = services.values_list("environment", "service")[: MAX_SERVICES * max(1, len(environments))]
    for environment, service in rows:
        for key in keys_of(environment, service, token.day):
            # The id is public and short: only the tag proves anything.
            if key.id == token.key_id and token.is_signed(key.key):
                return environment, service, key.key
    return None


def _is_of_its_day(token: RefusalToken) -> bool:
    """Whether the key was accepted when the token was made. A leaked key must not sign for ever."""
    begins = token.day * DAY_S * 1000
    ends = begins + (1 + ACCEPTED_DAYS) * DAY_S * 1000
    return begins - _SKEW_MS <= token.at_ms < ends + _SKEW_MS
