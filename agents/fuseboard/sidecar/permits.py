"""The permits and requests that applications have, by the ids that they got."""

from collections.abc import Callable
from os import urandom
from time import monotonic
from typing import Generic, TypeVar

from fuseboard.serving.shares import Uid, may_have_more

T = TypeVar("T")

MAX_KEPT = 10_000
#: Ids with 96 random bits cannot be guessed. The system is asked for many at once.
_ID_BYTES, _IDS_AT_ONCE = 12, 256


class Kept(Generic[T]):
    """Permits or decisions that an application has not sent back yet: bounded, and each for a time.

    ``ended`` is called with what expires, or makes room for newer ones. If it is ``fair``, no user can use
    the bound up: its own oldest makes room.
    """

    def __init__(
        self, letter: str, ended: Callable[[T], None], *, most: int = MAX_KEPT, fair: bool = False
    ) -> None:
        self._letter, self._ended, self._most, self._fair = letter, ended, most, fair
        self._kept: dict[str, tuple[float, T, Uid]] = {}
        #: The ids of each user, the oldest first.
        self._of: dict[Uid, dict[str, None]] = {}
        self._ids: list[str] = []
        #: How many were kept, expired, and made room.
        self.issued = self.expired = self.displaced = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, one: T, for_s: float, uid: Uid = None) -> str:
        """The id of ``one``, which this user gets."""
        if not self._fair:
            uid = None
        own, total = self._of.get(uid) or {}, len(self._kept)
        if total >= self._most or (self._fair and not may_have_more(len(own), total, self._most)):
            self.displaced += 1
            self._ended(self._drop(next(iter(own or self._kept))))
        self.issued += 1
        name = self._letter + self._id()
        self._kept[name] = (monotonic() + for_s, one, uid)
        self._of.setdefault(uid, {})[name] = None
        return name

    def _drop(self, name: str) -> T:
        _, one, uid = self._kept.pop(name)
        of_user = self._of[uid]
        del of_user[name]
        if not of_user:
            del self._of[uid]
        return one

    def _id(self) -> str:
        if not self._ids:
            drawn = urandom(_ID_BYTES * _IDS_AT_ONCE)
            self._ids = [drawn[at : at + _ID_BYTES].hex() for at in range(0, len(drawn), _ID_BYTES)]
        return self._ids.pop()

    def take(self, name: str) -> T | None:
        """The one with this id, once. ``None`` if it ended, or never was."""
        return self._drop(name) if name in self._kept else None

    def sweep(self) -> None:
        """End what has expired."""
        now = monotonic()
        for name in [name for name, (until, *_) in self._kept.items() if until <= now]:
            self.expired += 1
            self._ended(self._drop(name))

    def take_all(self) -> list[T]:
        """All that are left, once."""
        return [self._drop(name) for name in list(self._kept)]
