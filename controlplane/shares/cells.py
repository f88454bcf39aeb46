"""A whole that is halved again and again: which cells are free, and where a new one fits."""

from collections.abc import Generator, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

#: Cells that take less than a millisecond. Longer work yields after this many, so that other tasks run.
CHUNK = 200


class Cell(NamedTuple):
    """One of ``2**level`` equal parts of the whole."""

    level: int
    place: int

    @property
    def buddy(self) -> "Cell":
        """The other half of its parent."""
        return Cell(self.level, self.place ^ 1)

    @property
    def parent(self) -> "Cell":
        return Cell(self.level - 1, self.place >> 1)

    def shrunk(self, level: int) -> "Cell":
        """Its first part at a deeper level."""
        return Cell(level, self.place << (level - self.level))


class FreeCells:
    """The part of the whole that is not taken, in the largest possible cells."""

    def __init__(self, cells: set[Cell]) -> None:
        self._cells = cells
        #: A heap of the same cells, smallest level first. It may also hold cells that are no longer free: a
        #: fleet that starts all at once takes 10,000 of them.
        self._in_order = list(cells)
        heapify(self._in_order)

    @classmethod
    def beside(cls, taken: Iterable[Cell]) -> Generator[None, None, "FreeCells"]:
        """The cells that ``taken`` leaves of the whole; yields every ``CHUNK`` cells."""
        taken = set(taken)
        split: set[Cell] = set()
        for number, cell in enumerate(taken, 1):
            if number % CHUNK == 0:
                yield
            while cell.level and cell.parent not in split:
                cell = cell.parent
                split.add(cell)
        free: set[Cell] = set() if taken else {Cell(0, 0)}
        for number, cell in enumerate(split, 1):
            if number % CHUNK == 0:
                yield
            for half in (Cell(cell.level + 1, cell.place * 2), Cell(cell.level + 1, cell.place * 2 + 1)):
                if half not in split and half not in taken:
                    free.add(half)
        return cls(free)

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._cells

    def room_at(self, level: int) -> int:
        """How many cells of this level are free."""
        return sum(2 ** (level - cell.level) for cell in self._cells if cell.level <= level)

    def take(self, level: int) -> Cell:
        """A cell of this level, from the largest free cell. Raises ``LookupError``."""
        while self._in_order and self._in_order[0] not in self._cells:
            heappop(self._in_order)
        if not self._in_order or self._in_order[0].level > level:
            raise LookupError(f"no free cell at level {level}")
        chosen = heappop(self._in_order)
        self._cells.remove(chosen)
        while chosen.level < level:
            chosen = Cell(chosen.level + 1, chosen.place * 2)
            self._cells.add(chosen.buddy)
            heappush(self._in_order, chosen.buddy)
        return chosen

    def remove(self, cell: Cell) -> None:
        """Take exactly this cell."""
        self._cells.remove(cell)


def freed(before: Cell, level: int) -> list[Cell]:
    """The rest of a cell without its first part at ``level``."""
    parts = []
    while before.level < level:
        half = before.shrunk(before.level + 1)
        parts.append(half.buddy)
        before = half
    return parts


def level_for(servers: int) -> int:
    """The fewest halvings that give each of ``servers`` a cell."""
    return max(0, servers - 1).bit_length()
