"""The meaning of a failed call: whether to repeat it, and what it says about the vendor.

One source for the breaker (``outcomes.judge``) and for retries. The order: refusals by Fuseboard, the
vendor's own code, the HTTP status, the class of the exception. What none of them knows is unknown: a
failure of the vendor that is not repeated, and that a person should see.

Classes are found by package and name, so that no client library is imported.
"""

import asyncio
import socket
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fuseboard.calling.exception_paths import Path, attribute, names, paths
from fuseboard.calling.exception_tables import CLASSES, LOCAL
from fuseboard.calling.grpc_status import LATE, STATUSES, RpcStatus, headers_of, rpc_status_of
from fuseboard.calling.retry_after import asked_to_wait_ms, asks_for_hours
from fuseboard.calling.vendor_codes import NEVER_AGAIN, NEVER_FITS, known_code, status_of_code
from fuseboard.errors import FuseboardError, Refused

#: Members of a group that are looked at.
MAX_MEMBERS = 1000

#: Methods that may be repeated, whatever became of the first request (RFC 9110, 9.2.2).
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})


class Verdict(Struct, frozen=True, kw_only=True):
    """The judgment of a call that failed."""

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
    #: Milliseconds for which the vendor asked not to be called; 0 when it did not.
    cooldown_ms: int = 0
    #: The vendor's own word, such as ``insufficient_quota``; empty when it gave none.
    code: str = ""
    #: The HTTP status, or the one that ``code`` stands for; 0 for neither.
    status: int = 0
    #: The vendor may have received the request, so a repetition may do its work twice.
    sent: bool = True
    #: The vendor answered with an error, and charges nothing but the call.
    free: bool = False


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
    # Evidence about a limit, never about the vendor.
    429: _AGAIN,
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
#: A gateway answered for a vendor that did not, and that may have done the work.
MAY_BE_CHARGED = frozenset({408, 499, 502, 504, *range(520, 528)})
#: A person must act first, whatever a header says.
_ACCOUNT = frozenset({401, 402, 403})
#: How the names of timeouts end, in all libraries.
_TIMEOUTS = ("Timeout", "TimeoutError", "TimeoutException")


def classify(error: BaseException) -> Verdict:
    """Judge a call that raised ``error``. Never raises.

    An exception group says what its members say together: a failure of one is a failure, and another attempt
    may succeed only if it may for each of them.
    """
    return examine(error).verdict


class Finding(NamedTuple):
    verdict: Verdict
    #: The exception that decided it, or the member of a group that says most.
    error: BaseException
    #: An answer did not come in time, whatever the library, and whatever wraps the error.
    timeout: bool


def examine(
    error: BaseException, neutral: tuple[type[BaseException], ...] = (), *, hurried: bool = False
) -> Finding:
    """``classify``, with what decided it.

    Exceptions that are ``neutral`` say nothing. Neither do timeouts of a call that had too little time
    (``hurried``).
    """
    if isinstance(error, neutral):
        return Finding(NOTHING, error, False)
    found = []
    for path in paths(error)[:MAX_MEMBERS]:
        timeout = any(_is_timeout(link) for link in path)
        left_out = isinstance(path[0], neutral) or (hurried and timeout)
        found.append(Finding(NOTHING if left_out else _classify_path(path), path[0], timeout))
    worst = max(found, key=lambda one: _weight(one.verdict))
    if len(found) == 1 or worst.verdict is NOTHING:
        return worst
    verdicts = [one.verdict for one in found]
    together = replace(
        worst.verdict,
        retryable=all(one.retryable for one in verdicts),
        trips=any(one.trips for one in verdicts),
        alertable=any(one.alertable for one in verdicts),
        degradable=any(one.degradable for one in verdicts)
        and all(one.degradable or one.retryable for one in verdicts),
        ours=any(one.ours for one in verdicts),
        cooldown_ms=max(one.cooldown_ms for one in verdicts),
        sent=any(one.sent for one in verdicts),
        free=all(one.free for one in verdicts),
    )
    return worst._replace(verdict=together)


def _is_timeout(error: BaseException) -> bool:
    if any(name.endswith(_TIMEOUTS) for _, name in names(error)):
        return True
    status = rpc_status_of(error)
    return status is not None and status.name == LATE


def _weight(verdict: Verdict) -> tuple[bool, ...]:
    """The heaviest member of a group gives its code and its name."""
    return (
        needs_a_person(verdict),
        verdict.trips,
        verdict.alertable,
        verdict.cooldown_ms > 0,
        verdict is not NOTHING,
    )


def _classify_path(links: Path) -> Verdict:
    if not isinstance(links[0], Exception):
        return NOTHING  # cancelled, or the process ends
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
        if verdict is not None and (link is links[0] or verdict.status >= 400 or verdict.code):
            return verdict
    if not any(kinds):
        return UNKNOWN
    return replace(_AGAIN_TRIPS, sent="not_sent" not in kinds)


def classify_answer(status: int, headers: Mapping[str, str], code: str = "", message: str = "") -> Verdict:
    """Judge an HTTP answer, with the code that its body has, if that is known."""
    if status < 400 and not code and not message:
        return Verdict(status=status)  # nearly all
    verdict = _judge_answer(status, headers, code, message)
    return replace(verdict, free=True) if status >= 400 and status not in MAY_BE_CHARGED else verdict


def _judge_answer(status: int, headers: Mapping[str, str], code: str, message: str) -> Verdict:
    code = known_code((code,), message)
    if status == 429 and code not in NEVER_AGAIN and code != NEVER_FITS and asks_for_hours(headers):
        # This is no limit of a minute: what the account may use of a day or a month is spent.
        code = "insufficient_quota"
    stands_for = status_of_code(code, message, has_status=status >= 400)
    verdict = _STATUSES.get(stands_for or status)
    if verdict is None:
        verdict = _TRIPS if (stands_for or status) >= 500 else Verdict()
    known = code if stands_for is not None else ""
    if code in NEVER_AGAIN:
        known_status = status if status >= 400 else stands_for
        return replace(verdict, retryable=False, trips=False, code=code, status=known_status or 401)
    if stands_for == 0:
        return Verdict(code=known, status=status, degradable=code == "context_length_exceeded")
    cools = verdict.retryable and bool({status, stands_for} & _COOLING)
    cooldown_ms = asked_to_wait_ms(headers) if cools else 0
    retryable = verdict.retryable
    if status >= 400 and (word := (headers.get("x-should-retry") or "").strip().lower()) in ("true", "false"):
        retryable = word == "true" and (stands_for or status) not in _ACCOUNT and code != NEVER_FITS
    return replace(
        verdict,
        retryable=retryable,
        degradable=verdict.degradable or (bool(known) and stands_for == 413),
        cooldown_ms=cooldown_ms,
        code=known,
        status=stands_for or status,
    )


def classify_rpc(ended: RpcStatus) -> Verdict:
    """Judge a gRPC call that failed."""
    if ended.is_own_fault:
        return Verdict(alertable=True, sent=False)
    status = STATUSES.get(ended.name, STATUSES["UNKNOWN"])
    verdict = classify_answer(status, headers_of(ended.metadata), ended.code)
    # A lost connection has such a status too, and then the server may have done the work.
    return replace(verdict, code=verdict.code or ended.name, free=verdict.free and status < 500)


def refusal_of(error: BaseException) -> Refused | None:
    """The refusal that ``error`` is, or that caused it: a client library wraps what its transport raises.

    A group is a refusal when all its members are, apart from cancelled ones. The one that lasts longest
    counts. A defect beside a refusal is not hidden.
    """
    found: list[Refused] = []
    for path in paths(error):
        refusal = next((link for link in path if isinstance(link, Refused)), None)
        if refusal is not None:
            found.append(refusal)
        elif not isinstance(path[0], asyncio.CancelledError):
            return None
    return max(found, key=lambda one: one.decision.retry_after_ms, default=None)


def needs_a_person(verdict: Verdict) -> bool:
    """The vendor does not serve this account: a wrong key, no right, no money left."""
    return verdict.status in _ACCOUNT or verdict.code in NEVER_AGAIN


def known_repeatable(request: object) -> bool | None:
    """Whether a request of httpx, httpx2 or requests may be repeated; ``None`` if it does not say so."""
    if str(attribute(request, "method")).upper() in IDEMPOTENT_METHODS:
        return True
    headers = attribute(request, "headers")
    if isinstance(headers, Mapping) and any(str(name).lower() == "idempotency-key" for name in headers):
        return True
    return None


def _by_answer(error: BaseException) -> Verdict | None:
    """By the answer that the error carries; ``None`` without one."""
    if (ended := rpc_status_of(error)) is not None:
        return classify_rpc(ended)
    status, code, message = _status_of(error), "", ""
    classes = set(names(error))
    packages = {package for package, _ in classes}
    if "aiohttp" in packages and _is_unreadable(error, classes, status):
        return None
    if packages & {"openai", "anthropic", "google", "botocore"}:
        if any(name == "APIResponseValidationError" for _, name in classes):
            return Verdict(alertable=True, status=status or 0)
        code, message = _code_of(error)
    if status is None and status_of_code(code, message, has_status=False) is None:
        return None
    return classify_answer(status or 0, _http_headers_of(error), code, message)


def _code_of(error: BaseException) -> tuple[str, str]:
    """The vendor's code, or its type where the code is not known, and its message."""
    message = str(attribute(error, "message") or error)
    words = [attribute(error, name) for name in ("code", "type", "status")]
    # botocore keeps the answer as a dictionary.
    answer = attribute(error, "response")
    if isinstance(answer, Mapping) and isinstance(inner := answer.get("Error"), Mapping):
        words.append(inner.get("Code"))
    return known_code(words, message), message


def _is_unreadable(error: BaseException, classes: set[tuple[str, str]], status: int | None) -> bool:
    """aiohttp has a status in errors that are about something else.

    A good answer was not what the caller expected, or the answer is not HTTP: then 400 is aiohttp's own.
    """
    if ("aiohttp", "ContentTypeError") in classes:
        return status is not None and status < 400
    return error.__cause__ is not None and ("aiohttp", "HttpProcessingError") in names(error.__cause__)


def _kind_of(error: BaseException) -> str | None:
    if isinstance(error, socket.gaierror):
        # The resolver did not answer. A name that does not exist is a mistake.
        return "not_sent" if error.errno == socket.EAI_AGAIN else "alert"
    for name in names(error):
        if (kind := CLASSES.get(name)) is not None:
            return kind
    return None


def _status_of(error: BaseException) -> int | None:
    answer = attribute(error, "response")
    if (status := _status(_metadata(answer).get("HTTPStatusCode"))) is not None:
        return status
    of_google = any(package == "google" for package, _ in names(error))
    fields = ("status_code", "status", "code") if of_google else ("status_code", "status")
    for owner in (answer, error):
        for name in fields:
            if (status := _status(attribute(owner, name))) is not None:
                return status
    return None


def _metadata(answer: object) -> Mapping[str, object]:
    """botocore keeps an answer as a dictionary."""
    about = answer.get("ResponseMetadata") if isinstance(answer, Mapping) else None
    return about if isinstance(about, Mapping) else {}


def _status(value: object) -> int | None:
    return int(value) if isinstance(value, int) and 100 <= value <= 599 else None


def _http_headers_of(error: BaseException) -> dict[str, str]:
    answer = attribute(error, "response")
    found = (_metadata(answer).get("HTTPHeaders"), attribute(answer, "headers"), attribute(error, "headers"))
    for headers in found:
        if isinstance(headers, Mapping):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}
