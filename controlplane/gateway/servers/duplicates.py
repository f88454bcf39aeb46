"""Other processes under one server's name: a mistake of configuration, or a copy of a machine.

The younger process has the name, and the row. What the other one counts is not added to it, and it
gets the configuration like every pod. It spends, so it counts among the live pods.
"""

from dataclasses import dataclass

#: A process that was just replaced may still send a heartbeat. One that sends more is a duplicate.
BEATS = 3

#: Processes under one name that are counted, apart from its owner; and while there is little memory left.
MAX_RIVALS = 16
SPARSE_RIVALS = 1


@dataclass(slots=True)
class _Rival:
    sequence: int
    first: float
    last: float
    beats: int = 1
    asked: bool = False


class Duplicates:
    """Times are monotonic."""

    __slots__ = ("_by_boot", "_present", "asking")

    def __init__(self) -> None:
        #: Processes of the last count that counted a request.
        self.asking = 0
        self._by_boot: dict[str, _Rival] = {}
        self._present: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._by_boot)

    def record(self, boot: str, sequence: int, now: float, *, asked: bool, most: int = MAX_RIVALS) -> None:
        """A heartbeat of a boot that does not own the name. At most ``most`` boots are remembered."""
        known = self._by_boot.get(boot)
        if known is None:
            if self._make_room(asked=asked, most=most):
                self._by_boot[boot] = _Rival(sequence, now, now, asked=asked)
        elif sequence > known.sequence:
            known.sequence, known.last, known.beats = sequence, now, known.beats + 1
            known.asked = known.asked or asked

    def may_count(self, boot: str) -> bool:
        """Whether a first request of this boot would count one more process."""
        known = self._by_boot.get(boot)
        if known is not None:
            return not known.asked
        return len(self._by_boot) < MAX_RIVALS or bool(self._idle())

    def _idle(self) -> list[str]:
        return [boot for boot, rival in self._by_boot.items() if not rival.asked]

    def _make_room(self, *, asked: bool, most: int) -> bool:
        """Whether another process can be counted. One that counted a request replaces one that did not."""
        if len(self._by_boot) < most:
            return True
        idle = self._idle()
        if not asked or not idle:
            return False
        del self._by_boot[min(idle, key=lambda boot: self._by_boot[boot].last)]
        return True

    def count(self, now: float, *, pace_s: float, lease_s: float) -> int:
        """How many sent several heartbeats over more than one interval, the last one lately."""
        self._by_boot = {boot: r for boot, r in self._by_boot.items() if now - r.last <= lease_s}
        present = {
            boot: r for boot, r in self._by_boot.items() if r.beats >= BEATS and r.last - r.first >= pace_s
        }
        self._present = frozenset(present)
        self.asking = sum(r.asked for r in present.values())
        return len(present)

    def is_present(self, boot: str) -> bool:
        """Whether the last count contains this boot."""
        return boot in self._present

    def has_asked(self, boot: str) -> bool:
        rival = self._by_boot.get(boot)
        return rival is not None and rival.asked

    @property
    def any_has_asked(self) -> bool:
        return any(rival.asked for rival in self._by_boot.values())

    def uncounted(self) -> list[str]:
        """Processes that counted a request, but did not send enough heartbeats to be counted."""
        return [boot for boot, r in self._by_boot.items() if r.asked and boot not in self._present]

    def counted(self) -> list[str]:
        """Processes that the last count contains, and that counted a request."""
        return [boot for boot in self._present if self.has_asked(boot)]

    def forget(self, boot: str) -> None:
        """This boot owns the name now, or signed off."""
        self._by_boot.pop(boot, None)
