"""Who may read ``/metrics``: a scraper with FUSEBOARD_METRICS_TOKEN or an API token."""

from hmac import compare_digest

from django.conf import settings
from django.db import InterfaceError, OperationalError

from controlplane.accounts import tokens

#: The body of the answer to everyone else, with status 401.
REFUSAL = "An API token, or FUSEBOARD_METRICS_TOKEN."


def may_scrape(authorization: str) -> bool:
    """Check a header ``Authorization``. While Postgres is down, only FUSEBOARD_METRICS_TOKEN is accepted."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        return False
    expected = settings.METRICS_TOKEN
    if expected and compare_digest(token.encode(), expected.encode()):
        return True
    try:
        return tokens.user_of(token) is not None
    except (OperationalError, InterfaceError):
        return False
