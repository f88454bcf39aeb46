"""Errors as RFC 9457 documents: ``type``, ``title``, ``status``, ``detail`` and, with 422, ``errors``."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, AuthorizationError, HttpError, ValidationError

from controlplane.accounts.owned_tokens import TokenEnded, TokenUser
from controlplane.api.http.idempotency import InProgress, Reused
from controlplane.api.http.parsing import UnreadableBody, UnsupportedBody
from controlplane.api.http.rate_limit import Spent
from controlplane.errors import OTHERS_EDIT, EditConflict, EditsFrozen, InvalidEdit, NameTaken, NotFound
from controlplane.one_at_a_time import StillRunning
from controlplane.postgres import others_hold_lock
from controlplane.refusals.tokens import ExpiredToken, NotOurToken
from controlplane.refusals.tries import FOR_S, TooManyTries

CONTENT_TYPE = "application/problem+json"

#: Headers of a response that stay when its body becomes a problem document.
_KEPT = ("Allow", "RateLimit", "RateLimit-Policy", "Retry-After", "Vary", "WWW-Authenticate")

_DETAILS = {
    401: "Log in, or send Authorization: Bearer with a valid token.",
    404: "This address does not exist.",
    405: "This address does not support this method.",
    412: "The resource has changed, or If-Match is not supported here.",
    413: "The body is too large.",
    429: "Too many requests. Retry after the time in Retry-After.",
    500: "Internal error; it has been logged.",
    503: "Postgres is down or too slow.",
}
#: It can fail after the transaction of the edit.
_NOT_KNOWN = (
    "It is not known whether a change was made: read it before you send the request again, or send it with"
    " the same Idempotency-Key."
)
_READS = ("GET", "HEAD", "OPTIONS")


#: pydantic's errors in our words; the others keep pydantic's.
_SAID = {
    "missing": "This field is required.",
    "extra_forbidden": "Unknown field.",
    "string_too_short": "Use at least {min_length} characters.",
    "string_too_long": "Use at most {max_length} characters.",
    "string_type": "Enter text.",
    "bool_type": "Enter true or false.",
    "int_type": "Enter a whole number.",
    "int_from_float": "Enter a whole number.",
    "greater_than_equal": "Enter a number of at least {ge:,}.",
    "less_than_equal": "Enter a number of at most {le:,}.",
}


def problem(status: int, detail: str = "", *, kind: str = "", **more: Any) -> HttpResponse:
    title = HTTPStatus(status).phrase
    document = {
        "type": f"urn:fuseboard:problem:{kind or title.lower().replace(' ', '-')}",
        "title": title,
        "status": status,
        "detail": detail or _DETAILS.get(status, title),
        **more,
    }
    response = JsonResponse(document, status=status, content_type=CONTENT_TYPE)
    if status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="fuseboard"'
    return response


def install(api: NinjaAPI) -> None:
    """Handle the exceptions of the operations."""

    def handle(error: type[Exception], answer: Callable[[Any], HttpResponse]) -> None:
        api.add_exception_handler(error, lambda request, exception: answer(exception))

    api.add_exception_handler(AuthorizationError, lambda request, _: _forbidden(request))
    api.add_exception_handler(OperationalError, _store_error)

    handle(PermissionDenied, lambda e: problem(403, str(e)))
    handle(ValidationError, lambda e: _invalid([_field_error(found) for found in e.errors]))
    handle(EditsFrozen, lambda e: problem(423, str(e), kind="edits-frozen", until=e.until.isoformat()))
    handle(InvalidEdit, lambda e: _invalid([(field, " ".join(found)) for field, found in e.errors.items()]))
    handle(EditConflict, _conflict)
    handle(NameTaken, lambda e: problem(409, str(e), kind="name-taken"))
    handle(NotFound, lambda e: problem(404, str(e)))
    handle(NotOurToken, lambda e: problem(404, str(e), kind="not-our-token"))
    handle(ExpiredToken, lambda e: problem(410, str(e), kind="expired-token"))
    handle(TooManyTries, lambda e: _retry_after(problem(429, str(e), kind="too-many-tries"), FOR_S))
    handle(AuthenticationError, lambda e: problem(401))
    handle(TokenEnded, lambda e: problem(401, str(e), kind="token-ended"))
    handle(HttpError, _http_error)
    handle(RequestDataTooBig, lambda e: problem(413))
    handle(Spent, lambda e: problem(429))
    handle(StillRunning, lambda e: _retry_after(problem(429, _STILL_RUNNING, kind="still-running"), 5))
    handle(Reused, lambda e: problem(422, _REUSED, kind="idempotency-key-reused"))
    handle(InProgress, lambda e: _retry_after(problem(409, _IN_PROGRESS, kind="in-progress"), 1))


_REUSED = "This Idempotency-Key was used for another request. A new request needs a new key."
_STILL_RUNNING = (
    "An earlier plan, apply, preview, or what-if of yours is still running. Each caller gets one at a time."
    " Send this one after its answer."
)
_IN_PROGRESS = "A request with this Idempotency-Key is still in progress. Send it again later."


def _store_error(request: HttpRequest, error: Any) -> HttpResponse:
    """Answer an edit that waits for another one for too long. ``StoreErrors`` answers everything else."""
    if request.method in _READS or not others_hold_lock(error):
        raise error
    return _retry_after(problem(409, OTHERS_EDIT, kind="others-edit"), 1)


def _forbidden(request: HttpRequest) -> HttpResponse:
    user = getattr(request, "auth", None)
    if isinstance(user, TokenUser) and user.reduced:
        return problem(
            403,
            f"This token may not do this: it has no more rights than its owner, {user.owner}, has now."
            " Ask an admin for the role, or use a token of another person.",
        )
    where = request.resolver_match.kwargs.get("environment") if request.resolver_match else None
    if where is None:
        return problem(403, "Your role may not do this.")
    return problem(
        403, f"Your role in environment '{where}' may not do this; a token may be for another one."
    )


def _http_error(error: HttpError) -> HttpResponse:
    cause = error.__cause__
    if isinstance(cause, UnsupportedBody):
        return problem(415, str(cause))
    if isinstance(cause, UnreadableBody):
        return problem(400, f"The body cannot be read. {cause}")
    return problem(error.status_code, str(error))


def _retry_after(response: HttpResponse, seconds: int) -> HttpResponse:
    response.headers["Retry-After"] = str(seconds)
    return response


def _invalid(errors: Sequence[tuple[str, str]]) -> HttpResponse:
    return problem(
        422,
        "; ".join(f"{field}: {message}" for field, message in errors),
        kind="invalid",
        errors=[{"field": field, "message": message} for field, message in errors],
    )


def _field_error(found: dict[str, Any]) -> tuple[str, str]:
    # The first part of the location says body, path or query; in a body the second is the parameter's name.
    where, *rest = found["loc"]
    parts = rest[1:] if where == "body" and len(rest) > 1 else rest
    # A body that is not an object has no field of its own to name.
    field = "" if where == "body" and len(rest) == 1 else ".".join(map(str, parts))
    said = _SAID.get(found["type"], "")
    return field or str(where), said.format_map(found.get("ctx", {})) or found["msg"].removeprefix(
        "Value error, "
    )


def _conflict(error: EditConflict) -> HttpResponse:
    return problem(
        409,
        f"{error.by or 'Another person'} changed it meanwhile: {error}.",
        kind="conflict",
        expected_version=error.expected_version,
        current_version=error.current_version,
        changed=error.changed,
        changed_by=error.by,
        changed_at=error.at.isoformat() if error.at else None,
    )


class ProblemResponses:
    """Middleware: every error under /api/ is answered as a problem document."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        is_problem = response.headers.get("Content-Type", "").startswith(CONTENT_TYPE)
        if response.status_code < 400 or is_problem or not request.path.startswith("/api/"):
            return response
        detail = getattr(response, "problem", "")
        if not detail and response.status_code in (500, 503):
            known = "Try again in a few seconds." if request.method in _READS else _NOT_KNOWN
            detail = f"{_DETAILS[response.status_code]} {known}"
        answer = problem(response.status_code, detail)
        for name in _KEPT:
            if name in response.headers:
                answer.headers[name] = response.headers[name]
        return answer
