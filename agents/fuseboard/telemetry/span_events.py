"""Decisions and attempts as events of the span that the application is in."""

from contextvars import ContextVar

from opentelemetry.metrics import Histogram
from opentelemetry.trace import get_current_span
from opentelemetry.util.types import AttributeValue

from fuseboard.admission.call_guard import GuardedCall
from fuseboard.contract.words import Mode, Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.telemetry import words
from fuseboard.telemetry.figures import CALL, REQUEST

#: The number of the attempt that this task or thread makes; 0 outside of attempts.
_attempt: ContextVar[int] = ContextVar("fuseboard_attempt", default=0)

#: Attributes of the histogram, made once: by kind, whether it was allowed, and mode.
_POINTS = {
    (kind, allowed, mode): {words.KIND: kind, words.ALLOWED: allowed, words.MODE: str(mode)}
    for kind in (REQUEST, CALL)
    for allowed in (True, False)
    for mode in Mode
}


class SpanEvents:
    """The part of an ``Observer`` that shows decisions and attempts.

    A span that records nothing costs one look at it.
    """

    def __init__(self, duration: Histogram, calls: Histogram) -> None:
        self._record, self._record_call = duration.record, calls.record

    def decided(self, decision: Decision, seconds: float) -> None:
        kind = CALL if decision.dependency else REQUEST
        self._record(seconds, _POINTS[kind, decision.allowed, decision.mode])
        self._add_decision(kind, decision, None)

    def permitted(self, permit: Permit, begun: float, seconds: float) -> None:
        # The decision of a permit is made when it is read, so only for a span that records.
        self._record(seconds, _POINTS[CALL, True, permit.made.mode])
        if not get_current_span().is_recording():
            return
        slot = permit.slot
        got_slot = slot.guard.began(slot.number) if isinstance(slot, GuardedCall) else None
        self._add_decision(CALL, permit.decision, None if got_slot is None else got_slot - begun)

    def refused_unasked(self, decision: Decision) -> None:
        self._add_decision(CALL if decision.dependency else REQUEST, decision, None)

    def reported(self, permit: Permit, outcome: Outcome, elapsed_s: float | None) -> None:
        if permit.reported:
            return
        if elapsed_s is not None and outcome is not Outcome.NEUTRAL:
            self._record_call(elapsed_s, {words.DEPENDENCY: permit.dependency})
        span = get_current_span()
        if not span.is_recording():
            return
        attributes: dict[str, AttributeValue] = {
            words.DEPENDENCY: permit.dependency,
            words.OUTCOME: str(outcome),
        }
        if elapsed_s is not None:
            attributes[words.DURATION_MS] = round(elapsed_s * 1000, 3)
        if permit.failure is not None:
            attributes[words.ERROR_TYPE] = permit.failure[0]
        span.add_event(words.OUTCOME_EVENT, _with_attempt(attributes))

    def attempt_began(self, number: int) -> None:
        _attempt.set(number)

    def attempt_ended(self) -> None:
        _attempt.set(0)

    def attempt_failed(self, dependency: str, number: int, error: str, wait_s: float, given_up: str) -> None:
        _attempt.set(0)
        span = get_current_span()
        if not span.is_recording():
            return
        attributes: dict[str, AttributeValue] = {
            words.DEPENDENCY: dependency,
            words.ATTEMPT: number,
            words.ERROR_TYPE: error,
        }
        if given_up:
            attributes[words.GIVEN_UP] = given_up
        else:
            attributes[words.WAIT_MS] = round(wait_s * 1000, 3)
        span.add_event(words.RETRY_EVENT, attributes)

    def _add_decision(self, kind: str, decision: Decision, queued_s: float | None) -> None:
        span = get_current_span()
        if not span.is_recording():
            return
        # No tenant: what identifies a customer is not sent to one more system.
        attributes: dict[str, AttributeValue] = {
            words.KIND: kind,
            words.ALLOWED: decision.allowed,
            words.MODE: str(decision.mode),
            words.REVISION: decision.revision,
        }
        if decision.dependency:
            attributes[words.DEPENDENCY] = decision.dependency
        if decision.leased:
            attributes[words.LEASED] = True
        if queued_s is not None:
            attributes[words.QUEUE_WAIT_MS] = round(max(0.0, queued_s) * 1000, 3)
        if not decision.allowed:
            attributes[words.REASON] = str(decision.reason or "")
            attributes[words.RULE] = decision.rule
            attributes[words.RETRY_AFTER_MS] = decision.retry_after_ms
        span.add_event(words.DECISION_EVENT, _with_attempt(attributes))


def _with_attempt(attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    if number := _attempt.get():
        attributes[words.ATTEMPT] = number
    return attributes
