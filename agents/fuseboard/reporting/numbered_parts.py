"""Parts with numbers, which a pod sends until each is answered. Only the sync thread uses them."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Part = TypeVar("Part")
Row = TypeVar("Row")


class NumberedParts(Generic[Part]):
    def __init__(self) -> None:
        self._number = 0
        self._unanswered: deque[tuple[int, Part]] = deque()

    def __len__(self) -> int:
        return len(self._unanswered)

    def __iter__(self) -> Iterator[Part]:
        """The parts without an answer, the first one first."""
        return iter([part for _, part in self._unanswered])

    def add(self, make: Callable[[int], Part]) -> Part:
        """Make a part of the next number."""
        self._number += 1
        part = make(self._number)
        self._unanswered.append((self._number, part))
        return part

    def taken(self, number: int | None = None) -> None:
        """All parts until this number, or all, are answered."""
        while self._unanswered and (number is None or self._unanswered[0][0] <= number):
            self._unanswered.popleft()


def take_rows(waiting: deque[Row], most: int, room: int, size: Callable[[Row], int]) -> tuple[Row, ...]:
    """At most ``most`` rows from the left, together of at most ``room`` bytes."""
    part: list[Row] = []
    while waiting and len(part) < most:
        room -= size(waiting[0])
        if room < 0:
            break
        part.append(waiting.popleft())
    return tuple(part)
