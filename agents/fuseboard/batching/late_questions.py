"""Questions that got no answer in time while the event loop was late: nobody knows yet whose fault it was.

An answer that lay in the socket is read as soon as the loop comes round, and clears the store. One
that is still missing a long time and a turn of the loop later was never given: a server whose loop is
always late must notice a store that is gone, too.
"""

from collections import deque
from time import monotonic

from fuseboard.batching.question import Question

#: Longer than a store may take without being blamed, and than a turn of a loop that is busy.
SILENT_S = 0.25
#: Remembered at most; further ones are nobody's fault.
MOST = 10_000


class Doubts:
    """Oldest first."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Question, int]] = deque(maxlen=MOST)

    def note(self, question: Question) -> None:
        """It was given up just now. One that was never sent says nothing about the store."""
        if question.sent_at:
            self._waiting.append((monotonic(), question, question.calls))

    def settle(self) -> int:
        """Calls whose questions were never answered, of those old enough to know."""
        latest, calls = monotonic() - SILENT_S, 0
        while self._waiting and (self._waiting[0][0] <= latest or self._waiting[0][1].answered):
            _, question, count = self._waiting.popleft()
            if not question.answered:
                calls += count
        return calls
