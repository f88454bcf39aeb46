"""Names of pods with a row in Postgres: distinguishes a new pod from one that moved to this gateway."""

from collections.abc import Iterable

#: More names than this are not remembered, and count as new.
MOST_NAMES = 200_000

#: Rows are numbered before they are committed, so the newest numbers are read again.
OVERLAP = 20_000


class KnownNames:
    """Names by environment, gone pods included, as of the last look at Postgres."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._count = 0
        self._last = 0

    @property
    def read_from(self) -> int:
        """The lowest id of the rows that the next look has to read."""
        return self._last - OVERLAP

    def has(self, environment: str, name: str) -> bool:
        return name in self._names.get(environment, ())

    def add(self, rows: Iterable[tuple[int, str, str]]) -> None:
        """Add rows of id, environment, and name."""
        for number, environment, name in rows:
            names = self._names.setdefault(environment, set())
            self._last = max(self._last, number)
            if name not in names and self._count < MOST_NAMES:
                names.add(name)
                self._count += 1

    def replace(self, rows: Iterable[tuple[int, str, str]]) -> None:
        """Forget names whose rows were deleted."""
        self._names, self._count = {}, 0
        self.add(rows)
