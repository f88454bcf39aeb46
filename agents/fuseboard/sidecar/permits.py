"""The permits and requests that applications have, by the ids that they got."""

from collections.abc import Callable
from os import urandom
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_KEPT = 10_000
#: Ids with 96 random bits cannot be guessed. The system is asked for many at once.
_ID_BYTES, _IDS_AT_ONCE = 12, 256


class Kept(Generic[T]):
    """Permits or decisions that an application has not sent back yet: bounded, and each for a time.

    ``ended`` is called with what expires, or makes room for newer ones.
    """

    def __init__(self, letter: str, ended: Callable[[T], None], *, most: int = MAX_KEPT) -> None:
        self._letter, self._ended, self._most = letter, ended, most
        self._kept: dict[str, tuple[float, T]] = {}
        self._ids: list[str] = []
        #: How many were kept, expired, and made room.
        self.issued = self.expired = self.displaced = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, one: T, for_s: float) -> str:
        """The id of ``one``."""
        if len(self._kept) >= self._most:
            _, oldest = self._kept.pop(next(iter(self._kept)))
            self.displaced += 1
            self._ended(oldest)
        self.issued += 1
        name = self._letter + self._id()
        self._kept[name] = (monotonic() + for_s, one)
        return name

    def _id(self) -> str:
        if not self._ids:
            drawn = urandom(_ID_BYTES * _IDS_AT_ONCE)
            self._ids = [drawn[at : at + _ID_BYTES].hex() for at in range(0, len(drawn), _ID_BYTES)]
        return self._ids.pop()

    def take(self, name: str) -> T | None:
        """The one with this id, once. ``None`` if it ended, or never was."""
        found = self._kept.pop(name, None)
        return found[1] if found is not None else None

    def sweep(self) -> None:
        """End what has expired."""
        now = monotonic()
        for name in [name for name, (until, _) in self._kept.items() if until <= now]:
            self.expired += 1
            self._ended(self._kept.pop(name)[1])

    def take_all(self) -> list[T]:
        """All that are left, once."""
        left = [one for _, one in self._kept.values()]
        self._kept.clear()
        return left
