"""The error codes of vendors, and the HTTP status that each stands for.

A stream reports an error after its status of 200, so that the status alone would be read as a success. Some
errors are named only by their message.
"""

import re
from collections.abc import Iterable

#: The account cannot be used until a person acts. OpenAI sends ``insufficient_quota`` as a 429, with a time.
NEVER_AGAIN = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "invalid_api_key",
        "account_deactivated",
    }
)
#: The key of this pod is wrong. Other pods may have another one.
WRONG_KEY = frozenset({"invalid_api_key"})
#: No pod with this account is served.
ACCOUNT_SPENT = NEVER_AGAIN - WRONG_KEY
#: The request alone is larger than the limit: no attempt fits.
NEVER_FITS = "request_too_large"

#: 0: a mistake in this request alone.
_STATUS: dict[str, int] = {
    # OpenAI
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "timeout": 504,
    "overloaded": 529,
    "engine_overloaded": 529,
    "model_overloaded": 529,
    "vector_store_timeout": 504,
    **dict.fromkeys(NEVER_AGAIN, 401),
    "context_length_exceeded": 0,
    "content_policy_violation": 0,
    "invalid_prompt": 0,
    "model_not_found": 0,
    # Anthropic
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 529,
    "timeout_error": 504,
    "authentication_error": 401,
    "permission_error": 403,
    "billing_error": 402,
    "not_found_error": 0,
    NEVER_FITS: 413,
    "conflict_error": 409,
    # Google
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    "INTERNAL": 500,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "INVALID_ARGUMENT": 0,
    "NOT_FOUND": 0,
    # AWS
    "ThrottlingException": 429,
    "Throttling": 429,
    "TooManyRequestsException": 429,
    "ServiceUnavailableException": 503,
    "InternalServerException": 500,
    "ModelTimeoutException": 504,
    "AccessDeniedException": 403,
    "ValidationException": 0,
}

#: Anthropic has no code of its own for a prompt that is too long.
_TOO_LONG = "prompt is too long"
#: OpenAI and others answer such a request with a 429, again at each attempt. With "Used", it fits later.
_TOO_LARGE = re.compile(r"request too large|limit:? ([0-9]+),? requested:? ([0-9]+)", re.ASCII)
#: Vendors answer these with 400 or 429, and with a code that has other meanings.
_NO_MONEY = (
    "credit balance is too low",
    "spend limit",
    "spending limit",
    "specified api usage limits",
    "insufficient balance",
)


def known_code(words: Iterable[object], message: str = "") -> str:
    """The code that these words and this message stand for, else the first word; empty for none."""
    said = message.lower()
    if any(phrase in said for phrase in _NO_MONEY):
        return "billing_error"
    found = [word for word in words if isinstance(word, str) and word]
    if not NEVER_AGAIN.intersection(found) and (large := _TOO_LARGE.search(said)):
        limit, requested = large.groups()
        if limit is None or int(requested) > int(limit):
            return NEVER_FITS
    return next((word for word in found if word in _STATUS), found[0] if found else "")


def status_of_code(code: str, message: str = "", *, has_status: bool) -> int | None:
    """The status that a vendor's code stands for; ``None`` for an unknown code.

    ``invalid_request_error`` comes with several statuses: it decides only where there is no other.
    """
    if code == "invalid_request_error":
        if _TOO_LONG in message.lower():
            return 413
        return None if has_status else 0
    return _STATUS.get(code)


def code_in(document: object) -> str:
    """The code in the body of an error, as vendors write it; empty when there is none."""
    if not isinstance(document, dict):
        return ""
    error = document.get("error", document)
    if not isinstance(error, dict):
        return ""
    message = error.get("message")
    words = [error.get(name) for name in ("code", "type", "status", "__type")]
    return known_code(words, message if isinstance(message, str) else "")


def code_in_part(body: bytes) -> str:
    """The code in a body that breaks off or is too long, if it is one that must not stop the fleet."""
    return next((code for code in sorted(NEVER_AGAIN) if f'"{code}"'.encode() in body), "")
