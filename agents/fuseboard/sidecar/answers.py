"""Decisions as answers of the sidecar.

A decision is always 200, with ``allowed``. Every other status is a problem, and no decision: an answer of a
sidecar that is busy must not look like that of an open breaker.
"""

from collections.abc import Callable
from math import ceil
from time import monotonic

import msgspec

from fuseboard.contract.sidecar import (
    AllowedCall,
    AllowedRequest,
    Checked,
    DependencyState,
    LimitLeft,
    Problem,
    RefusedAnswer,
)
from fuseboard.decision import Decision, Permit
from fuseboard.integrations.problem import limit_headers, refusal
from fuseboard.serving.exchange import Answer

PROBLEM_JSON = "application/problem+json"
#: The beginning of the types of problems.
PROBLEMS = "urn:fuseboard:sidecar:"
_TITLES = {
    400: "Malformed",
    401: "No valid token",
    403: "Forbidden",
    404: "Unknown path",
    405: "Wrong method",
    413: "Too large",
    415: "Not JSON",
    431: "Too large",
    500: "Defect",
    503: "Unavailable",
}

_encode = msgspec.json.Encoder().encode


def json_answer(
    content: msgspec.Struct | list[DependencyState], unsent: Callable[[], object] | None = None
) -> Answer:
    return Answer(200, _encode(content), unsent=unsent)


def problem(status: int, kind: str, detail: str) -> Answer:
    """No decision: the client uses its own failure mode."""
    content = Problem(type=PROBLEMS + kind, title=_TITLES[status], status=status, detail=detail)
    headers = {401: (("www-authenticate", "Bearer"),), 503: (("retry-after", "1"),)}.get(status, ())
    return Answer(status, _encode(content), PROBLEM_JSON, headers)


def wrong_method(*allowed: str) -> Answer:
    """No decision: the path has other methods, of which the problem names the first."""
    return problem(405, "method", f"use {allowed[0]}")._replace(headers=(("allow", ", ".join(allowed)),))


def allowed_request(decision: Decision, hold: str | None, unsent: Callable[[], object]) -> Answer:
    return json_answer(
        AllowedRequest(
            hold=hold,
            headers=dict(limit_headers(decision)),
            mode=decision.mode,
            revision=decision.revision,
        ),
        unsent,
    )


def allowed_call(permit: Permit, permit_id: str, expires_s: float, unsent: Callable[[], object]) -> Answer:
    decision = permit.decision
    return json_answer(
        AllowedCall(
            permit=permit_id,
            timeout_ms=_ms(longest_s(permit)),
            first_part_ms=_ms(permit.parts.first_s or None) if permit.parts else None,
            between_parts_ms=_ms(permit.parts.between_s or None) if permit.parts else None,
            expires_ms=int(expires_s * 1000),
            state=permit.state,
            mode=decision.mode,
            revision=decision.revision,
        ),
        unsent,
    )


def longest_s(permit: Permit) -> float | None:
    """How long the call may take. A stream has only the caller's deadline."""
    if permit.parts is None:
        return permit.timeout_s
    return None if permit.until is None else max(permit.until - monotonic(), 0.001)


def checked(decision: Decision) -> Answer:
    left = [
        LimitLeft(
            name=limit.name,
            limit=limit.limit,
            remaining=limit.remaining,
            window_ms=limit.window_ms,
            measure=limit.measure,
        )
        for limit in decision.limits
    ]
    return json_answer(
        Checked(
            would="allowed" if decision.allowed else "refused",
            reason=decision.reason,
            rule=decision.rule,
            retry_after_ms=decision.retry_after_ms,
            left=tuple(left),
            mode=decision.mode,
            revision=decision.revision,
        )
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else ceil(seconds * 1000)


def refused(decision: Decision) -> Answer:
    """The status, headers and body are those of the middlewares."""
    status, headers, body = refusal(decision)
    return json_answer(
        RefusedAnswer(
            status=status,
            reason=decision.reason,
            rule=decision.rule,
            retry_after_ms=decision.retry_after_ms,
            headers={name: value for name, value in headers if name != "content-length"},
            problem=msgspec.Raw(body),
            mode=decision.mode,
            revision=decision.revision,
        )
    )
