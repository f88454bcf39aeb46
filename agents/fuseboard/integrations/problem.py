"""A refusal in HTTP: status, headers and problem+json (RFC 9457).

``Fuseboard-Refusal`` and ``instance`` carry the token that the control plane explains; ``Link`` and
``explain_url`` are the address of the page that does, where one is configured.
``trace_id`` is that of the request, if it belongs to a trace of W3C Trace Context.
``RateLimit`` and ``RateLimit-Policy`` follow draft-ietf-httpapi-ratelimit-headers-10, and so do the two
problem types that it registers.
"""

import json
import random
from functools import lru_cache
from itertools import pairwise
from math import ceil
from urllib.parse import quote

from fuseboard.calling.trace import trace_id
from fuseboard.contract.refusal_token import HEADER, URN
from fuseboard.contract.words import Algorithm, Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.integrations.legacy_headers import CALLS, legacy_headers

#: Names in lower case.
Headers = list[tuple[str, str]]

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
#: A type of Fuseboard: no registered one fits.
SUSPENDED = "urn:fuseboard:problem:suspended"

#: The caller has used up its quota. With any other reason, the service itself lacks capacity.
_CALLERS_OWN = {Reason.QUOTA, Reason.CONCURRENCY, Reason.BUDGET_SPENT}

#: Characters that a header string may contain unescaped, besides letters and digits.
_PLAIN = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"

#: Callers that are refused together are spread over this part of their wait, so that they do not return
#: together, and over a minute at most (with the second that rounding adds).
_RETRY_JITTER, _MAX_JITTER_S = 0.1, 59.0

#: The wait and the window in plain words, for the people who read the answer of an API.
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def status_of(decision: Decision) -> int:
    if decision.reason is Reason.SUSPENDED:
        return 403
    return 429 if decision.reason in _CALLERS_OWN else 503


def limit_headers(decision: Decision, *, legacy: bool = False, wait_s: int = 0) -> Headers:
    """``RateLimit-Policy`` for every checked limit, ``RateLimit`` for those with a known remainder.

    ``legacy`` adds ``X-RateLimit-*`` for the limit of requests that is nearest to its end. Its ``Reset`` is
    Unix time, as most clients expect it, and agrees with ``wait_s``, the ``Retry-After`` of a refusal; ``t``
    of ``RateLimit`` is in seconds from now. Shadow limits never refuse, so they are not listed.
    """
    limits = [limit for limit in decision.limits if not limit.shadow]
    if not limits:
        return []
    headers = [("ratelimit-policy", ", ".join([_policy_of(limit) for limit in limits]))]
    known = [limit for limit in limits if limit.remaining is not None]
    if known:
        headers.append(("ratelimit", ", ".join([_state(limit, decision) for limit in known])))
    if legacy:
        headers += legacy_headers(decision, wait_s)
    return headers


def header_pairs(decision: Decision, *, legacy: bool = False) -> list[tuple[bytes, bytes]]:
    """``limit_headers`` in the format of ASGI."""
    limits = decision.limits
    if len(limits) == 1 and decision.allowed and not legacy:
        # Nearly every request: only the number of calls left is new.
        limit = limits[0]
        if limit.shadow:
            return []
        policy, left = _pairs_of_one(limit.name, limit.limit, limit.window_ms, limit.algorithm, limit.measure)
        if limit.remaining is None:
            return [policy]
        return [policy, (b"ratelimit", b"%b%d" % (left, max(0, limit.remaining)))]
    return encoded(limit_headers(decision, legacy=legacy))


def encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]


def refusal(decision: Decision, *, legacy: bool = False) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the response to a refused request."""
    status = status_of(decision)
    token = decision.refusal_token()
    details = problem(decision)
    wait_s = details.get("retry_after", 0)
    headers = limit_headers(decision, legacy=legacy, wait_s=wait_s if isinstance(wait_s, int) else 0)
    if trace := trace_id():
        details["trace_id"] = trace
    if token:
        headers.append((HEADER, token))
        details["instance"] = URN + token
        if page := decision.explain_url(token):
            headers.append(("link", f'<{page}>; rel="help"'))
            details["explain_url"] = page
    if "retry_after" in details:
        headers.append(("retry-after", str(details["retry_after"])))
    body = json.dumps(details).encode()
    headers.append(("content-type", "application/problem+json"))
    headers.append(("content-length", str(len(body))))
    return status, headers, body


def problem(decision: Decision) -> dict[str, object]:
    """The problem details of a refusal, as a JSON object. ``retry_after`` is in seconds, like the header."""
    status = status_of(decision)
    details: dict[str, object] = {"status": status, "reason": str(decision.reason or "")}
    wait_s = 0
    if decision.retry_after_ms and status != 403:
        least_s = decision.retry_after_ms / 1000
        wait_s = ceil(least_s + random.uniform(0, min(least_s * _RETRY_JITTER, _MAX_JITTER_S)))
        details["retry_after"] = wait_s
    if status == 429:
        return details | {
            "type": QUOTA_EXCEEDED,
            "title": "Too many requests",
            "detail": _spent_words(decision, wait_s),
            "violated-policies": [decision.rule],
        }
    if status == 403:
        return details | {
            "type": SUSPENDED,
            "title": "Suspended",
            "detail": "Requests of this tenant are suspended.",
        }
    details |= {
        "type": REDUCED_CAPACITY,
        "title": "Temporarily reduced capacity",
        "detail": decision.message or "This service cannot take the request at the moment.",
    }
    by_limit = decision.rule and decision.tenant and not decision.message
    return details | ({"violated-policies": [decision.rule]} if by_limit else {})


def close_code(decision: Decision) -> int:
    """The code that closes a WebSocket: try again later, or policy violation."""
    return 1013 if decision.retry_after_ms and status_of(decision) != 403 else 1008


def close_reason(decision: Decision) -> str:
    """The detail of the problem, in the 123 bytes that a closing frame has room for."""
    return str(problem(decision)["detail"]).encode()[:123].decode(errors="ignore")


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    """A header string. The tenant in the name of an inherited quota may contain any character."""
    return f'"{quote(name, safe=_PLAIN)}"'


def _policy_of(limit: LimitStatus) -> str:
    return _policy(limit.name, limit.limit, limit.window_ms, limit.algorithm, limit.measure)


@lru_cache(maxsize=1024)
def _policy(name: str, limit: int, window_ms: int, algorithm: Algorithm, measure: str) -> str:
    text = f"{_quoted(name)};q={limit}"
    if algorithm is Algorithm.CONCURRENCY:
        return f'{text};qu="concurrent-requests"'
    if measure != CALLS:
        # A quota without a unit counts requests.
        text = f"{text};qu={_quoted(measure)}"
    # Only whole seconds are possible. A window of 1.5 s is left out rather than rounded.
    return f"{text};w={window_ms // 1000}" if window_ms % 1000 == 0 else text


@lru_cache(maxsize=1024)
def _pairs_of_one(
    name: str, limit: int, window_ms: int, algorithm: Algorithm, measure: str
) -> tuple[tuple[bytes, bytes], bytes]:
    """The header of the policy, and the beginning of the header of its state."""
    policy = _policy(name, limit, window_ms, algorithm, measure).encode()
    return (b"ratelimit-policy", policy), f"{_quoted(name)};r=".encode()


def _state(limit: LimitStatus, decision: Decision) -> str:
    waits = limit.name == decision.rule and decision.retry_after_ms
    wait = f";t={ceil(decision.retry_after_ms / 1000)}" if waits else ""
    return f"{_quoted(limit.name)};r={max(0, limit.remaining or 0)}{wait}"


def _spent_words(decision: Decision, wait_s: int) -> str:
    """The limit, its window, and the wait: ``The limit 'requests' of 100 requests per minute is spent.``"""
    found = next((limit for limit in decision.limits if limit.name == decision.rule), None)
    then = f" Try again in {_wait(wait_s)}." if wait_s else ""
    if found is None:
        return f"The limit {decision.rule!r} is spent.{then}"
    if found.limit == 0:
        return f"The limit {decision.rule!r} allows no {_measure(found)}."
    if found.algorithm is Algorithm.CONCURRENCY:
        return f"The limit {decision.rule!r} of {found.limit:,} requests at once is reached.{then}"
    amount = f"{found.limit:,} {_measure(found)} per {_window(found)}"
    if not wait_s:
        return f"The limit {decision.rule!r} of {amount} has no room for this request."
    return f"The limit {decision.rule!r} of {amount} is spent.{then}"


def _measure(limit: LimitStatus) -> str:
    return "requests" if limit.measure == CALLS else limit.measure.replace("_", " ")


def _window(limit: LimitStatus) -> str:
    if limit.period is not None:
        return limit.period.value
    seconds = limit.window_ms / 1000
    for unit, size in _UNITS:
        count = seconds / size
        if count >= 1 and count.is_integer():
            return unit if count == 1 else f"{count:.0f} {unit}s"
    return f"{seconds:g} seconds"


def _wait(seconds: int) -> str:
    """In its two largest units, rounded up: a client that waits is not refused again."""
    (unit, size), (smaller, small) = next(
        (pair for pair in pairwise(_UNITS) if seconds >= pair[0][1]), (_UNITS[-1], _UNITS[-1])
    )
    count, rest = divmod(ceil(seconds / small), size // small)
    return " and ".join(_counted(number, name) for number, name in ((count, unit), (rest, smaller)) if number)


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"
