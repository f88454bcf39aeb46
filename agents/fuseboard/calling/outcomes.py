"""Judges how a call ended, by what it returned or raised: the breaker's side of ``classification``."""

from collections.abc import Mapping

from fuseboard.calling.classification import Verdict, classify, classify_answer, examine
from fuseboard.calling.failures import cooldown_of, is_noted, kind_of, note_failure
from fuseboard.calling.retry_after import MAX_COOLDOWN_MS, retry_after_ms
from fuseboard.calling.vendor_codes import ACCOUNT_SPENT, NEVER_AGAIN
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit

__all__ = [
    "MAX_COOLDOWN_MS",
    "judge",
    "judge_permitted",
    "outcome_of",
    "outcome_of_exception",
    "outcome_of_response",
    "outcome_of_status",
    "retry_after_ms",
]


def outcome_of_status(status: int) -> Outcome:
    """5xx are the dependency's failures; 4xx are the caller's own mistakes, or say that a limit is spent."""
    return outcome_of(classify_answer(status, {}))


def outcome_of_response(status: int, headers: Mapping[str, str]) -> tuple[Outcome, int]:
    """The outcome of a response, and for how many milliseconds the sender asked not to be called.

    The whole fleet waits after a 429, so that is no evidence against the vendor. Every 503 is a failure.
    """
    verdict = classify_answer(status, headers)
    return outcome_of(verdict), cooldown_of(verdict)


def outcome_of_exception(error: BaseException) -> Outcome:
    """Judge what a guarded call raised; see ``judge``."""
    return judge(error)[0]


def judge(error: BaseException) -> tuple[Outcome, int]:
    """The outcome of a call that raised, and for how many milliseconds the vendor asked not to be called.

    These say nothing about the dependency: cancellation, the end of the process, a refusal by
    Fuseboard, and a request that could not be built or that the vendor calls wrong. An exception with a
    status (those of httpx, requests, aiohttp and most vendors' clients have one) is judged by the
    vendor's code, where it has one, or by its status and its ``Retry-After``. Everything else is a
    failure: timeouts, lost connections, answers that do not parse. An exception group is a failure if one
    of its members is.
    """
    verdict = classify(error)
    return outcome_of(verdict), cooldown_of(verdict)


def judge_permitted(
    permit: Permit, error: BaseException, neutral: tuple[type[BaseException], ...] = ()
) -> tuple[Outcome, int]:
    """``judge``, for a call that a deadline may have given too little time. The permit keeps how it failed.

    A usual call takes longer than such a timeout, which says nothing about the dependency: an overloaded pod
    must not open the breaker of the fleet. Exceptions that are ``neutral`` say nothing either.
    """
    found = examine(error, neutral, hurried=permit.hurried)
    verdict = found.verdict
    outcome = outcome_of(verdict)
    if outcome is Outcome.FAILURE or (verdict.status and is_noted(verdict)):
        note_failure(permit, kind_of(found))
    note_account(permit, verdict)
    settle_answered(permit, verdict)
    return outcome, cooldown_of(verdict)


def note_account(permit: Permit, verdict: Verdict) -> None:
    """The permit keeps whether the vendor serves the account."""
    if verdict.code in NEVER_AGAIN:
        permit.account_refused, permit.account_spent = True, verdict.code in ACCOUNT_SPENT


def settle_answered(permit: Permit, verdict: Verdict) -> None:
    """If the vendor answered with an error, the call used only what was counted of its estimates."""
    if verdict.free:
        for measure in permit.estimated.difference(permit.counted or ()):
            permit.settle(measure, 0)


def outcome_of(verdict: Verdict) -> Outcome:
    if verdict.trips:
        return Outcome.FAILURE
    fine = 0 < verdict.status < 400 and not verdict.code and not verdict.alertable
    return Outcome.OK if fine else Outcome.NEUTRAL
