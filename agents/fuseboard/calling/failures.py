"""The kind of failure that a call ended with, in a word that is safe to display: no message, no address."""

from fuseboard.calling.classification import Finding, Verdict, needs_a_person
from fuseboard.calling.trace import trace_id
from fuseboard.contract.failures import KIND_LETTERS, UNKNOWN_KIND, is_kind
from fuseboard.decision import Permit

#: A 429 without a time stops the calls of the fleet for this time. Each further 429 does so again, until the
#: limit of the vendor has room.
ROOM_AGAIN_MS = 1000


def kind_of(found: Finding) -> str:
    """The vendor's code, ``HTTP 503``, ``timeout``, or the class of the exception.

    In a group, the kind of the member that says most.
    """
    if found.verdict.code or found.verdict.status:
        return kind_of_answer(found.verdict)
    return "timeout" if found.timeout else _safe(type(found.error).__name__)


def kind_of_answer(verdict: Verdict) -> str:
    return _safe(verdict.code) if verdict.code else f"HTTP {verdict.status}"


def is_noted(verdict: Verdict) -> bool:
    """Whether people should see an answer that is no failure of the dependency.

    The fleet waits after a 429, and a person must act on a 401: neither opens a breaker.
    """
    return cooldown_of(verdict) > 0 or verdict.alertable


def cooldown_of(verdict: Verdict) -> int:
    """Milliseconds for which the fleet stops calling: as the vendor asked, or shortly after a 429."""
    if verdict.cooldown_ms or verdict.status != 429 or needs_a_person(verdict):
        return verdict.cooldown_ms
    return ROOM_AGAIN_MS


def note_failure(permit: Permit, kind: str) -> None:
    """Keep with the permit how its call failed, and in which trace. Call it where the call was made."""
    permit.failure = (kind, trace_id())


def _safe(word: str) -> str:
    word = word[:KIND_LETTERS]
    return word if is_kind(word) else UNKNOWN_KIND
