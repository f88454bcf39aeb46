"""Gives up questions that Redis does not answer in time."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from fuseboard.batching.redis_question import Question
from fuseboard.store.health import StoreHealth

#: A timer that fires this late means that the loop was busy, not that Redis is slow.
LOOP_LAG_S = 0.002

#: A question without an answer counts against Redis after this time. It is longer than a healthy store
#: takes, and longer than one turn of a busy loop.
SILENT_S = 0.25
#: Unanswered questions that are remembered. Further ones count against nothing.
MAX_UNANSWERED = 10_000


class Deadlines:
    """The deadlines of questions that wait equally long, so that the oldest one ends first.

    One timer serves them all.
    """

    def __init__(self, health: StoreHealth, give_up: Callable[[Question], None]) -> None:
        self._health, self._give_up = health, give_up
        self._waiting: deque[tuple[float, Question]] = deque()
        self._late = LateQuestions()
        self._timer: asyncio.TimerHandle | None = None
        # Kept from the first question on: looking it up is a system call in Python 3.11.
        self._loop: asyncio.AbstractEventLoop

    def watch(self, question: Question, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append((question.deadline, question))
        if self._timer is None:
            self._loop = loop
            self._timer = loop.call_later(max(0.0, question.deadline - monotonic()), self._timer_fired)

    def close(self) -> None:
        """Let all waiting callers decide locally."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            _, question = self._waiting.popleft()
            if not question.over:
                question.answer_all(None)

    def _timer_fired(self) -> None:
        self._timer = None
        self._drop_finished()
        if not self._waiting:
            return
        lag = monotonic() - self._waiting[0][0]
        if lag > LOOP_LAG_S:
            # The answers may already be in the socket: read them first, and count nothing against Redis.
            self._loop.call_soon(partial(self._expire, blame_store=False))
        else:
            self._expire(blame_store=True)

    def _drop_finished(self) -> None:
        while self._waiting and self._waiting[0][1].over:
            self._waiting.popleft()

    def _expire(self, *, blame_store: bool) -> None:
        now = monotonic()
        self._drop_finished()
        while self._waiting and self._waiting[0][0] <= now:
            _, question = self._waiting.popleft()
            # The batcher may have extended the deadline; then the question is in the queue twice.
            if not question.over and question.deadline <= now:
                self._give_up(question)
                if blame_store:
                    self._health.missed(question.calls)
                else:
                    self._late.add(question)
        if calls := self._late.unanswered():
            self._health.missed(calls)
        self._drop_finished()
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(max(0.0, self._waiting[0][0] - now), self._timer_fired)


class LateQuestions:
    """Questions that missed their deadline while the event loop was late. Oldest first.

    At that moment it is not known whether Redis or the loop was at fault. An answer that was in the
    socket is read in the next turn of the loop, and clears Redis. An answer that is still missing after
    ``SILENT_S`` counts as missing: a pod whose loop is always late must notice a lost Redis, too.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Question, int]] = deque(maxlen=MAX_UNANSWERED)

    def add(self, question: Question) -> None:
        """The batcher gave up this question. A question that was never sent says nothing about Redis."""
        if question.sent_at:
            self._waiting.append((monotonic(), question, question.calls))

    def unanswered(self) -> int:
        """Drop questions that were answered or are older than ``SILENT_S``. Return the latter's calls."""
        latest, calls = monotonic() - SILENT_S, 0
        while self._waiting and (self._waiting[0][0] <= latest or self._waiting[0][1].answered):
            _, question, count = self._waiting.popleft()
            if not question.answered:
                calls += count
        return calls
