"""What a failed call says: whether to repeat it, and what it says about the vendor.

One source for the breaker (``outcomes.judge``) and for retries. The order: refusals by Fuseboard, the
vendor's own code, the HTTP status, the class of the exception. What none of them knows is unknown: a
failure of the vendor that is not repeated, and that a person should see.

Classes are found by package and name, so that no client library is imported.
"""

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fuseboard.calling.classes import CLASSES, LOCAL
from fuseboard.calling.codes import NEVER_AGAIN, status_of_code
from fuseboard.calling.retry_after import asked_to_wait_ms
from fuseboard.errors import FuseboardError, Refused

#: How many causes of an exception are looked at.
MAX_DEPTH = 5

#: Methods that may be repeated, whatever became of the first request (RFC 9110, 9.2.2).
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})


class Verdict(Struct, frozen=True, kw_only=True):
    """What is known about a call that failed."""

    #: Another attempt may succeed.
    retryable: bool = False
    #: The vendor's failure: it counts towards opening the breaker.
    trips: bool = False
    #: A person should see it: a wrong key, no money left, an unknown error.
    alertable: bool = False
    #: A smaller or simpler request may succeed.
    degradable: bool = False
    #: This pod's own shortage, such as no free connection in the pool of a client.
    ours: bool = False
    #: For how long the vendor asked not to be called; 0 when it did not.
    cooldown_ms: int = 0
    #: The vendor's own word, such as ``insufficient_quota``; empty when it gave none.
    code: str = ""
    #: The HTTP status, or the one that ``code`` stands for; 0 for neither.
    status: int = 0
    #: The vendor may have received the request, so a repetition may do its work twice.
    sent: bool = True


#: Says nothing about the dependency: cancelled, refused by Fuseboard, never sent.
NOTHING = Verdict(sent=False)
UNKNOWN = Verdict(trips=True, alertable=True)

_AGAIN = Verdict(retryable=True)
_AGAIN_TRIPS = Verdict(retryable=True, trips=True)
_TRIPS = Verdict(trips=True, alertable=True)
_ALERT = Verdict(alertable=True)
_STATUSES: dict[int, Verdict] = {
    401: _ALERT,
    402: _ALERT,
    403: _ALERT,
    408: _AGAIN,
    413: Verdict(degradable=True),
    425: _AGAIN,
    429: _AGAIN_TRIPS,
    500: Verdict(retryable=True, trips=True, alertable=True),
    502: _AGAIN_TRIPS,
    503: _AGAIN_TRIPS,
    504: _AGAIN_TRIPS,
    # Cloudflare's, for a server that it cannot reach or that it waits for too long.
    **dict.fromkeys(range(520, 525), _AGAIN_TRIPS),
    529: _AGAIN_TRIPS,
}
#: Answers whose ``Retry-After`` the whole fleet obeys.
_COOLING = frozenset({425, 429, 503, 529})
#: A person must act first, whatever a header says.
_ACCOUNT = frozenset({401, 402, 403})
#: Libraries whose errors have what they wrap as an argument.
_WRAPPING = frozenset({"requests", "urllib3", "httpcore", "httpcore2"})
#: How the names of timeouts end, in all libraries.
_TIMEOUTS = ("Timeout", "TimeoutError", "TimeoutException")


def classify(error: BaseException) -> Verdict:
    """What a call that raised ``error`` says. Never raises."""
    if not isinstance(error, Exception):
        return NOTHING  # cancelled, or the process ends
    links = tuple(_links(error))
    # A client library may wrap the refusal that its transport raised.
    if any(isinstance(link, FuseboardError) for link in links):
        return NOTHING
    kinds = [_kind_of(link) for link in links]
    for kind in kinds:
        if kind in LOCAL:
            return Verdict(alertable=kind == "alert", ours=kind == "ours", sent=False)
    for link in links:
        verdict = _by_answer(link)
        # A good answer inside an error is what the error is about: it could not be used.
        if verdict is not None and (link is error or verdict.status >= 400 or verdict.code):
            return verdict
    if not any(kinds):
        return UNKNOWN
    return replace(_AGAIN_TRIPS, sent="not_sent" not in kinds)


def classify_answer(status: int, headers: Mapping[str, str], code: str = "", message: str = "") -> Verdict:
    """What an HTTP answer says, with the code that its body has, if that is known."""
    stands_for = status_of_code(code, message, has_status=status >= 400)
    verdict = _STATUSES.get(stands_for or status)
    if verdict is None:
        verdict = _TRIPS if (stands_for or status) >= 500 else Verdict()
    known = code if stands_for is not None else ""
    if code in NEVER_AGAIN:
        return replace(verdict, retryable=False, trips=False, code=code, status=status)
    if stands_for == 0:
        return Verdict(code=known, status=status, degradable=code == "context_length_exceeded")
    cools = verdict.retryable and bool({status, stands_for} & _COOLING)
    cooldown_ms = asked_to_wait_ms(headers) if cools else 0
    retryable = verdict.retryable
    if status >= 400 and (word := (headers.get("x-should-retry") or "").strip().lower()) in ("true", "false"):
        retryable = word == "true" and (stands_for or status) not in _ACCOUNT
    return replace(
        verdict,
        retryable=retryable,
        # The whole fleet obeys a 429 with a time to come back, so that 429 is no evidence against the vendor.
        trips=verdict.trips and not (cooldown_ms and (stands_for or status) == 429),
        degradable=verdict.degradable or (bool(known) and stands_for == 413),
        cooldown_ms=cooldown_ms,
        code=known,
        status=stands_for or status,
    )


def refusal_of(error: BaseException) -> Refused | None:
    """The refusal that ``error`` is, or that caused it: a client library wraps what its transport raises."""
    return next((link for link in _links(error) if isinstance(link, Refused)), None)


def needs_a_person(verdict: Verdict) -> bool:
    """The vendor does not serve this account: a wrong key, no right, no money left."""
    return verdict.status in _ACCOUNT or verdict.code in NEVER_AGAIN


def is_timeout(error: BaseException) -> bool:
    """Whether an answer did not come in time, whatever the library, and whatever wraps the error."""
    return any(name.endswith(_TIMEOUTS) for link in _links(error) for _, name in _names(link))


def known_repeatable(request: object) -> bool | None:
    """Whether a request of httpx, httpx2 or requests may be repeated; ``None`` if it does not say so."""
    if str(_of(request, "method")).upper() in IDEMPOTENT_METHODS:
        return True
    headers = _of(request, "headers")
    if isinstance(headers, Mapping) and any(str(name).lower() == "idempotency-key" for name in headers):
        return True
    return None


def _links(error: BaseException) -> Iterator[BaseException]:
    """The exception and what caused it, from the outermost to the innermost."""
    link: BaseException | None = error
    for _ in range(MAX_DEPTH):
        if link is None:
            return
        yield link
        link = link.__cause__ or _inner(link)


def _inner(error: BaseException) -> BaseException | None:
    """What these libraries wrap without naming it as the cause."""
    package = type(error).__module__.partition(".")[0]
    if package == "urllib3":
        reason = _of(error, "reason")
        if isinstance(reason, BaseException):
            return reason
    if package in _WRAPPING:
        return next((one for one in error.args if isinstance(one, BaseException)), None)
    return None


def _by_answer(error: BaseException) -> Verdict | None:
    """By the answer that the error carries; ``None`` without one."""
    status, code, message = _status_of(error), "", ""
    names = {package for package, _ in _names(error)}
    if names & {"openai", "anthropic"}:
        if any(name == "APIResponseValidationError" for _, name in _names(error)):
            return Verdict(alertable=True, status=status or 0)
        code, message = _code_of(error)
    if status is None and status_of_code(code, message, has_status=False) is None:
        return None
    return classify_answer(status or 0, _headers_of(error), code, message)


def _code_of(error: BaseException) -> tuple[str, str]:
    """The vendor's code, or its type where the code is not known, and its message."""
    message = str(_of(error, "message") or error)
    words = [_of(error, name) for name in ("code", "type")]
    found = [word for word in words if isinstance(word, str) and word]
    for word in found:
        if status_of_code(word, message, has_status=False) is not None:
            return word, message
    return (found[0] if found else ""), message


def _kind_of(error: BaseException) -> str | None:
    if isinstance(error, socket.gaierror):
        # The resolver did not answer. A name that does not exist is a mistake.
        return "not_sent" if error.errno == socket.EAI_AGAIN else "alert"
    for name in _names(error):
        if (kind := CLASSES.get(name)) is not None:
            return kind
    return None


def _names(error: BaseException) -> Iterator[tuple[str, str]]:
    """Package and name of the error's class and of those it is derived from."""
    for one in type(error).__mro__:
        yield one.__module__.partition(".")[0], one.__name__


def _status_of(error: BaseException) -> int | None:
    for owner in (_of(error, "response"), error):
        for name in ("status_code", "status"):
            status = _of(owner, name)
            if isinstance(status, int) and 100 <= status <= 599:
                return status
    return None


def _headers_of(error: BaseException) -> dict[str, str]:
    for owner in (_of(error, "response"), error):
        headers = _of(owner, "headers")
        if isinstance(headers, Mapping):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}


def _of(owner: object, name: str) -> Any:
    """An attribute, or ``None``. httpx raises ``RuntimeError`` for the request of an error without one."""
    with contextlib.suppress(Exception):
        return getattr(owner, name, None)
    return None
