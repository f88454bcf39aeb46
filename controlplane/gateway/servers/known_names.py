"""Names of pods with a row in Postgres: distinguishes a new pod from one that moved to this gateway."""

from collections.abc import Iterable

#: More names than this are not remembered, and count as new.
MAX_NAMES = 200_000

#: Rows are numbered before they are committed, so the newest numbers are read again, for longer than a
#: transaction of a gateway takes.
OVERLAP = 20_000
OVERLAP_S = 10.0


class KnownNames:
    """Names by environment, gone pods included, as of the last look at Postgres."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._count = 0
        self._last = 0
        #: When the newest row was read, monotonic.
        self._rose = float("-inf")

    def read_from(self, now: float) -> int:
        """The next look has to read the rows with an id above this."""
        return self._last - OVERLAP if now - self._rose < OVERLAP_S else self._last

    def has(self, environment: str, name: str) -> bool:
        return name in self._names.get(environment, ())

    def add(self, rows: Iterable[tuple[int, str, str]], now: float) -> None:
        """Add rows of id, environment, and name."""
        before = self._last
        for number, environment, name in rows:
            names = self._names.setdefault(environment, set())
            self._last = max(self._last, number)
            if name not in names and self._count < MAX_NAMES:
                names.add(name)
                self._count += 1
        if self._last > before:
            self._rose = now

    def replace(self, others: "KnownNames") -> None:
        """Know what the others know only: names whose rows were deleted are forgotten."""
        self._names, self._count = others._names, others._count
        self._last, self._rose = others._last, others._rose
