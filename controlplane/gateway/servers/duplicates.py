"""Other processes under one server's name: a mistake of configuration, or a copy of a machine.

The younger process has the name, and the row. What the other one counts is not added to it, and it
gets the configuration like every pod. It spends, so it counts among the live pods.
"""

from dataclasses import dataclass

#: A process that was just replaced may still send a heartbeat. One that sends more is a duplicate.
BEATS = 3


@dataclass(slots=True)
class _Rival:
    sequence: int
    first: float
    last: float
    beats: int = 1
    asked: bool = False


class Duplicates:
    """Times are monotonic."""

    __slots__ = ("_by_boot", "asking")

    def __init__(self) -> None:
        #: Of those counted last, the ones that counted a request.
        self.asking = 0
        self._by_boot: dict[str, _Rival] = {}

    def hear(self, boot: str, sequence: int, now: float, *, asked: bool) -> None:
        """A heartbeat of a boot that does not own the name."""
        known = self._by_boot.get(boot)
        if known is None:
            if len(self._by_boot) < 16:
                self._by_boot[boot] = _Rival(sequence, now, now, asked=asked)
        elif sequence > known.sequence:
            known.sequence, known.last, known.beats = sequence, now, known.beats + 1
            known.asked = known.asked or asked

    def count(self, now: float, *, pace_s: float, lease_s: float) -> int:
        """How many sent several heartbeats over more than one interval, the last one lately."""
        if not self._by_boot:
            return 0
        self._by_boot = {boot: r for boot, r in self._by_boot.items() if now - r.last <= lease_s}
        present = [r for r in self._by_boot.values() if r.beats >= BEATS and r.last - r.first >= pace_s]
        self.asking = sum(r.asked for r in present)
        return len(present)

    def forget(self, boot: str) -> None:
        """This boot owns the name now."""
        self._by_boot.pop(boot, None)
