"""Bounds the demands that are kept for all tenants, subjects and dependencies together."""

from collections import deque
from collections.abc import Callable
from weakref import WeakMethod

from fuseboard.settings import MAX_SUBJECTS, scaled

#: The most demands, for the usual number of subjects.
MAX_KEPT = 50_000


class KeptDemands:
    """The oldest are dropped first.

    Each keeper bounds its own demands. Even so, many tenants whose costs change with each call would fill the
    memory.
    """

    def __init__(self, most_subjects: int = MAX_SUBJECTS) -> None:
        self.most = scaled(MAX_KEPT, most_subjects)
        #: One for each demand. A keeper that is gone, with its rules, must not stay because of them.
        self._drops: deque[WeakMethod[Callable[[], None]]] = deque()

    def add(self, drop: Callable[[], None]) -> None:
        """One more is kept. ``drop`` is a method that drops the oldest one of its keeper, if it has any."""
        self._drops.append(WeakMethod(drop))
        if len(self._drops) > self.most:
            oldest = self._drops.popleft()()
            if oldest is not None:
                oldest()
