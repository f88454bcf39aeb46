"""One call and its attempts: whether there is another one, and after which wait.

It neither waits nor calls anything itself. Who uses it holds no slot and no permit while it waits.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import TypeAlias

from msgspec.structs import replace

from fuseboard.calling.classification import NOTHING, Verdict, classify, examine
from fuseboard.calling.exception_paths import paths
from fuseboard.calling.observer import Observer
from fuseboard.calling.retries import NEWEST, Retries
from fuseboard.calling.retry_budget import Withdrawal
from fuseboard.calling.trace import trace_id
from fuseboard.calling.vendor_codes import NEVER_AGAIN
from fuseboard.calling.waits import most_attempts
from fuseboard.contract.protection import Retry
from fuseboard.contract.retry_presets import RETRY_PRESETS
from fuseboard.contract.words import Jitter

logger = logging.getLogger("fuseboard.retries")

#: Exceptions to retry instead of those that are classified as retryable, or a function that says so.
RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] | None
#: Makes the request smaller after a ``degradable`` error, and says whether it did.
Shrink: TypeAlias = Callable[[Verdict], bool] | None

#: Without a deadline, no wait for a vendor is longer.
LONGEST_WAIT_S = 120.0
#: Powers of two beyond this one overflow long before they matter.
MAX_EXPONENT = 30
#: Pods that were asked to wait for the same time come back within this part of it.
SPREAD = 0.1


class GivenUp(StrEnum):
    """Why there is no other attempt."""

    OFF = "the policy allows no retries"
    NOT_RETRYABLE = "another attempt would not succeed"
    SENT = "the request may have arrived, and it is not known that it may be repeated: pass idempotent=True"
    EXHAUSTED = "that was the last attempt"
    BUSY = "the breaker is not closed, calls queue, or many attempts fail"
    DEADLINE = "the deadline would pass before another attempt ends"
    TOO_LONG = "the vendor asks for a wait that is too long"
    NO_BUDGET = "the retry budget is spent"


_SENT_ONCE = (
    "a block whose request may have arrived is not repeated; pass idempotent=True where that does no harm,"
    " or switch it on in the policy"
)


class RetriedCall:
    """Belongs to one caller. Safe from any thread, one at a time."""

    __slots__ = (
        "_began",
        "_made",
        "_neutral",
        "_on",
        "_one_request",
        "_part",
        "_repeatable",
        "_retries",
        "_retry",
        "_shrink",
        "_taken",
        "_until",
        "cause",
        "given_up",
        "next_wait_s",
        "num",
    )

    def __init__(
        self,
        retries: Retries,
        dependency: str,
        *,
        until: float | None = None,
        on: RetryOn = None,
        idempotent: bool | None = None,
        shrink: Shrink = None,
        neutral: tuple[type[Exception], ...] = (),
        preset: str | None = None,
        one_request: bool = False,
    ) -> None:
        self._retries = retries
        self._part = retries.part(dependency)
        self._retry: Retry | None = retries.settings(dependency)
        if self._retry is not None and preset is not None:
            self._retry = replace(self._retry, **RETRY_PRESETS[preset])
        #: The moment on the clock of ``retries``.
        self._until = until
        self._on, self._shrink, self._neutral = on, shrink, neutral
        if idempotent is None:
            idempotent = self._retry is not None and self._retry.idempotent
            # Noted once: every call comes here.
            if not idempotent and not one_request and on is None and not self._part.unused:
                retries.note_unused(dependency, _SENT_ONCE)
        self._repeatable = idempotent
        #: An attempt is one request, so its error says whether that was sent. In a block of the application,
        #: the error is only of the last request: others may have arrived before it.
        self._one_request = one_request
        self._began = 0.0
        self._taken: Withdrawal | None = None
        #: The number of the attempt that runs or ended last, from 1.
        self.num = self._made = 0
        #: The error that ended the attempt before.
        self.cause: Exception | None = None
        self.next_wait_s = 0.0
        self.given_up: GivenUp | None = None

    @property
    def most(self) -> int:
        """All attempts that the policy allows, the first included."""
        most = self._retry.attempts if self._retry is not None else 1
        bound = most_attempts.get()
        return most if bound is None else min(most, bound)

    @property
    def budget_left(self) -> float:
        """Retries that the dependency's budget allows now."""
        retry, retries = self._retry, self._retries
        if retry is None:
            return 0.0
        with retries.lock:
            return self._part.budget.left(retries.clock(), retry)

    def begin(self) -> None:
        """An attempt begins: it is about to be admitted."""
        self.num += 1
        self._show(lambda observer: observer.attempt_began(self.num))

    def admitted(self) -> None:
        """The attempt is made: it has its permit. Waiting for that is no part of its duration.

        Only now the first one counts. A refused call puts no load on the dependency, so it allows no retries.
        """
        self._began, self._made = self._retries.clock(), self.num
        with self._retries.lock:
            if self.num == 1:
                self._part.budget.first_call(self._began)
                self._part.totals.first_calls += 1
            else:
                self._part.totals.retries += 1
                self._taken = None

    def succeeded(self) -> None:
        part, now = self._part, self._retries.clock()
        with self._retries.lock:
            part.errors.add(now, failed=False)
            part.failed_before = False
            took_s = max(0.0, now - self._began)
            part.usual_s += (took_s - part.usual_s) * (NEWEST if part.usual_s else 1.0)
            part.totals.helped += self.num > 1
            part.totals.ended(self.num)
        self._show(lambda observer: observer.attempt_ended())

    def failed(self, error: Exception) -> bool:
        """Whether to make another attempt, after ``next_wait_s``. If not, a note on the error says why."""
        found = examine(error)
        again = self._again(found.verdict, type(found.error).__name__, error)
        self._note(error)
        # An error refers to the frames that it passed. If one of them refers to this call, and this to the
        # error, only the garbage collector frees them.
        self.cause = error if again else None
        return again

    def answered(self, verdict: Verdict, what: str) -> bool:
        """Judge an attempt that raised nothing. ``what`` is for the log."""
        return self._again(verdict, what, None)

    def _again(self, verdict: Verdict, what: str, error: Exception | None) -> bool:
        part, retries = self._part, self._retries
        self.given_up, shrunk = self._unwanted(verdict, error)
        now = retries.clock()
        with retries.lock:
            troubled = part.failed_before
            if verdict is not NOTHING and not self._is_no_signal(error):
                # A mistake in the request says nothing about the dependency.
                part.failed_before = verdict.trips or verdict.retryable
                part.errors.add(now, failed=part.failed_before)
            self.given_up = self.given_up or self._withdraw(verdict, now, shrunk, troubled)
            unlogged = part.unlogged(now) if self.given_up is GivenUp.NO_BUDGET else 0
            if self.given_up is not None:
                part.totals.ended(self.num)
                part.totals.exhausted += self.given_up is GivenUp.EXHAUSTED and self.num > 1
        self._show(lambda observer: self._show_failed(observer, what))
        if self.given_up is GivenUp.OFF and not part.warned and verdict.retryable:
            part.warned = True
            logger.info("retry.off dependency=%s: its policy allows no retries", part.name)
        if self.given_up is GivenUp.SENT and self.most > 1 and not part.warned:
            part.warned = True
            logger.warning(
                "retry.not_repeatable dependency=%s attempts=%d: %s", part.name, self.most, self.given_up
            )
        if self.given_up is None:
            self._log("retry.waiting", what, f" wait_ms={self.next_wait_s * 1000:.0f}")
            return True
        if unlogged is not None and (self.num > 1 or self.given_up is GivenUp.NO_BUDGET):
            more = f" unlogged={unlogged}" if unlogged else ""
            self._log("retry.given_up", what, f" why={self.given_up.name.lower()}{more}")
        return False

    def resumes(self) -> bool:
        """After the wait: whether the next attempt may begin. If not, its retry is given back."""
        if self._retries.may_resume(self._part):
            return True
        self.given_up = GivenUp.BUSY
        self.dropped()
        if self.cause is not None:
            self._note(self.cause)
        return False

    def refused(self, explanation: str) -> None:
        """The next attempt was refused, so the one before was the last."""
        self.dropped()
        if self.cause is not None:
            self.cause.add_note(f"fuseboard: attempt {self.num} was refused: {explanation}")

    def last_error(self) -> Exception | None:
        """The error to raise if there is no other attempt. Forgets it then, for the reason in ``failed``."""
        error, self.cause = self.cause, None
        return error

    def dropped(self) -> None:
        """The next attempt is not made, because it was refused; or one was cancelled."""
        if self._taken is not None:
            with self._retries.lock:
                self._retries.give_back(self._part, self._taken)
                self._part.totals.ended(self._made)
            self._taken = None
        self._show(lambda observer: observer.attempt_ended())

    def _unwanted(self, verdict: Verdict, error: Exception | None) -> tuple[GivenUp | None, bool]:
        """Why the request must not be sent again, and whether it was made smaller for that.

        Calls functions of the application, so not under the lock.
        """
        retry = self._retry
        if retry is None:
            return GivenUp.OFF, False
        wanted = self._wanted(verdict, error)
        if not wanted and not (verdict.degradable and self._shrink is not None):
            return GivenUp.NOT_RETRYABLE, False
        if self.num >= self.most:
            return GivenUp.EXHAUSTED, False
        if not wanted:
            shrunk = self._shrink is not None and self._shrink(verdict)
            return (None if shrunk else GivenUp.NOT_RETRYABLE), shrunk
        if not self._repeatable and (verdict.sent or not self._one_request):
            return GivenUp.SENT, False
        return None, False

    def _withdraw(self, verdict: Verdict, now: float, shrunk: bool, troubled: bool) -> GivenUp | None:
        """Why there may be no other attempt now; ``None`` when its retry is withdrawn."""
        retry, retries, part = self._retry, self._retries, self._part
        if retry is None:
            return GivenUp.OFF
        if self.num > retries.allowance(part, now):
            return GivenUp.BUSY
        delay_s = 0.0 if shrunk else backoff_s(retry, verdict, self.num, self.next_wait_s, retries.random)
        if self._until is not None and now + delay_s + part.usual_s > self._until:
            return GivenUp.DEADLINE
        if self._until is None and delay_s > max(LONGEST_WAIT_S, retry.cap_ms / 1000):
            return GivenUp.TOO_LONG
        self._taken = retries.withdraw(part, retry, now, troubled=troubled)
        if self._taken is None:
            if not retries.observes():
                part.totals.no_budget += 1
                return GivenUp.NO_BUDGET
            part.totals.observed += 1
        self.next_wait_s = delay_s
        return None

    def _is_no_signal(self, error: Exception | None) -> bool:
        neutral = self._neutral
        return bool(error is not None and neutral and examine(error, neutral).verdict is NOTHING)

    def _wanted(self, verdict: Verdict, error: Exception | None) -> bool:
        on = self._on
        if on is None or error is None:
            return verdict.retryable
        if verdict is NOTHING or verdict.code in NEVER_AGAIN:
            return False
        # Another attempt repeats what each member of a group did.
        members = [path[0] for path in paths(error)]
        if any(classify(member) is NOTHING for member in members):
            return False
        if isinstance(on, type | tuple):
            return isinstance(error, on) or all(isinstance(member, on) for member in members)
        return all(isinstance(member, Exception) and bool(on(member)) for member in members)

    def _note(self, error: Exception) -> None:
        why = self.given_up
        if why is None or why in (GivenUp.NOT_RETRYABLE, GivenUp.OFF):
            return
        error.add_note(f"fuseboard: attempt {self.num} of {self.most} was the last: {why}")

    def _show(self, event: Callable[[Observer], None]) -> None:
        """A defect of what shows the call must not end it."""
        if (observer := self._retries.observer) is not None:
            try:
                event(observer)
            except Exception:
                logger.exception("retry.not_shown dependency=%s attempt=%d", self._part.name, self.num)

    def _show_failed(self, observer: Observer, what: str) -> None:
        # A call that is not repeated by policy, or because it went well, is no news of retries.
        if self.given_up in (GivenUp.OFF, GivenUp.NOT_RETRYABLE):
            observer.attempt_ended()
        else:
            why = "" if self.given_up is None else self.given_up.name.lower()
            observer.attempt_failed(self._part.name, self.num, what, self.next_wait_s, why)

    def _log(self, event: str, what: str, more: str) -> None:
        logger.warning(
            "%s dependency=%s attempt=%d max=%d error=%s%s%s",
            event,
            self._part.name,
            self.num,
            self.most,
            what,
            more,
            f" trace_id={trace}" if (trace := trace_id()) else "",
        )


def backoff_s(retry: Retry, verdict: Verdict, attempt: int, before_s: float, random: Random) -> float:
    """The wait after the attempt with this number failed. ``before_s`` is the wait before that attempt.

    At least what the vendor asked for, and a little more, so that not all pods come back at once.
    """
    at_once = verdict.status == 408 or verdict.code == "timeout"
    drawn = 0.0 if at_once else _drawn_s(retry, verdict, attempt, before_s, random)
    asked_ms = verdict.cooldown_ms
    if not asked_ms and verdict.status == 429:
        asked_ms = retry.default_retry_after_ms
    return max(drawn, asked_ms / 1000 * random.uniform(1.0, 1.0 + SPREAD))


def _drawn_s(retry: Retry, verdict: Verdict, attempt: int, before_s: float, random: Random) -> float:
    # A vendor that is overloaded gets twice the time.
    base_s = retry.base_ms / 1000 * (2 if verdict.status == 529 else 1)
    cap_s = retry.cap_ms / 1000
    most_s: float = min(cap_s, base_s * 2 ** min(attempt - 1, MAX_EXPONENT))
    if retry.jitter is Jitter.NONE:
        return most_s
    if retry.jitter is Jitter.EQUAL:
        return most_s / 2 + random.uniform(0.0, most_s / 2)
    if retry.jitter is Jitter.DECORRELATED:
        return min(cap_s, random.uniform(base_s, max(base_s, before_s * 3)))
    return random.uniform(0.0, most_s)
