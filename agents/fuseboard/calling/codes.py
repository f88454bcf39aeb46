"""The error codes of model vendors, and the HTTP status that each stands for.

A stream reports an error after its status of 200, so that the status alone would be read as a success.
"""

#: No attempt succeeds until a person acts. OpenAI sends ``insufficient_quota`` as a 429, with a time.
NEVER_AGAIN = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "invalid_api_key", "account_deactivated"}
)

#: 0: a mistake in this request alone.
_STATUS: dict[str, int] = {
    # OpenAI
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "timeout": 504,
    "overloaded": 529,
    "engine_overloaded": 529,
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
    "request_too_large": 413,
    "conflict_error": 409,
}

#: Anthropic has no code of its own for a prompt that is too long.
_TOO_LONG = "prompt is too long"


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
    """The code in the body of an error, as both vendors write it; empty when there is none."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return ""
    words = [error.get(name) for name in ("code", "type")]
    found = [word for word in words if isinstance(word, str) and word]
    return next((word for word in found if word in _STATUS), found[0] if found else "")


def code_in_part(body: bytes) -> str:
    """The code in a body that breaks off or is too long, if it is one that must not stop the fleet."""
    return next((code for code in sorted(NEVER_AGAIN) if f'"{code}"'.encode() in body), "")
