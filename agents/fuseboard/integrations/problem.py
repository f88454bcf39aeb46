"""A refusal as HTTP says it: status, headers and problem+json (RFC 9457).

``RateLimit`` and ``RateLimit-Policy`` follow draft-ietf-httpapi-ratelimit-headers-10, as do
the two problem types it registers.
"""

import json
import random
from math import ceil

from fuseboard.contract.words import Reason
from fuseboard.decision import Decision

Headers = list[tuple[bytes, bytes]]

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
#: Nobody registered a type for it, so it is one of ours.
SUSPENDED = "urn:fuseboard:problem:suspended"

#: The caller used what it was given; with any other reason the service itself is short.
_CALLERS_OWN = {Reason.QUOTA, Reason.CONCURRENCY, Reason.LOCAL_RATE, Reason.BUDGET_SPENT}

#: Callers refused together are spread by up to this much, so that they do not return together.
_RETRY_JITTER = 0.1


def status_of(decision: Decision) -> int:
    if decision.reason is Reason.SUSPENDED:
        return 403
    return 429 if decision.reason in _CALLERS_OWN else 503


def limit_headers(decision: Decision) -> Headers:
    """``RateLimit-Policy`` for every limit that was checked, ``RateLimit`` for those whose rest is known."""
    if not decision.limits:
        return []
    policies, states = [], []
    for limit in decision.limits:
        # Only whole seconds can be said; a window of 1.5 s is left out rather than rounded.
        window = f";w={limit.window_ms // 1000}" if limit.window_ms % 1000 == 0 else ""
        policies.append(f'"{limit.name}";q={limit.limit}{window}')
        if limit.remaining is not None:
            wait = ""
            if limit.name == decision.rule and decision.retry_after_ms:
                wait = f";t={ceil(decision.retry_after_ms / 1000)}"
            states.append(f'"{limit.name}";r={max(0, limit.remaining)}{wait}')
    headers = [(b"ratelimit-policy", ", ".join(policies).encode())]
    if states:
        headers.append((b"ratelimit", ", ".join(states).encode()))
    return headers


def refusal(decision: Decision) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the answer to a refused request."""
    status = status_of(decision)
    headers = limit_headers(decision)
    if decision.retry_after_ms and status != 403:
        seconds = decision.retry_after_ms / 1000 * (1 + random.uniform(0, _RETRY_JITTER))
        headers.append((b"retry-after", str(ceil(seconds)).encode()))
    body = json.dumps(_problem(decision, status)).encode()
    headers.append((b"content-type", b"application/problem+json"))
    headers.append((b"content-length", str(len(body)).encode()))
    return status, headers, body


def _problem(decision: Decision, status: int) -> dict[str, object]:
    problem: dict[str, object] = {"status": status, "reason": str(decision.reason or "")}
    if status == 429:
        problem |= {
            "type": QUOTA_EXCEEDED,
            "title": "Too many requests",
            "detail": f"The limit {decision.rule!r} is spent.",
            "violated-policies": [decision.rule],
        }
    elif status == 403:
        problem |= {
            "type": SUSPENDED,
            "title": "Suspended",
            "detail": "Requests of this tenant are suspended.",
        }
    else:
        problem |= {
            "type": REDUCED_CAPACITY,
            "title": "Temporarily reduced capacity",
            "detail": "This service cannot take the request at the moment.",
        }
        if decision.rule and decision.tenant:
            problem["violated-policies"] = [decision.rule]
    return problem
