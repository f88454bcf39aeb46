"""What kind of failure a call ended with, in a word that is safe to display: no message, no address."""

from fuseboard.calling.classification import Verdict, classify, is_timeout
from fuseboard.calling.trace import trace_id
from fuseboard.contract.failures import KIND_LETTERS, UNKNOWN_KIND, is_kind
from fuseboard.decision import Permit


def kind_of_error(error: BaseException) -> str:
    """The vendor's code, ``HTTP 503``, ``timeout``, or the class of the exception."""
    verdict = classify(error)
    if verdict.code or verdict.status:
        return kind_of_answer(verdict)
    return "timeout" if is_timeout(error) else _safe(type(error).__name__)


def kind_of_answer(verdict: Verdict) -> str:
    return _safe(verdict.code) if verdict.code else f"HTTP {verdict.status}"


def is_noted(verdict: Verdict) -> bool:
    """Whether people should see an answer that is no failure of the dependency.

    The fleet waits after a 429 with a time, and a person must act on a 401: neither opens a breaker.
    """
    return verdict.cooldown_ms > 0 or verdict.alertable


def note_failure(permit: Permit, kind: str) -> None:
    """Keep with the permit how its call failed, and in which trace. Call it where the call was made."""
    permit.failure = (kind, trace_id())


def _safe(word: str) -> str:
    word = word[:KIND_LETTERS]
    return word if is_kind(word) else UNKNOWN_KIND
