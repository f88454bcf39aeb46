"""How many processes an environment has, and by how much one of them divides a limit without Redis.

A process that counted a request divides by processes that counted one: others can be invented. One that
shares its name is counted for the other pods after some heartbeats only; until then, it adds itself.
"""

from controlplane.gateway.clock import Clock
from controlplane.gateway.servers.duplicates import MAX_RIVALS
from controlplane.gateway.servers.liveness import RecentMaximum


class FleetSize:
    """Counts the live pods that this process hears, and takes in the counts over all gateways."""

    def __init__(self, clock: Clock, *, beat_ms: int, beats_per_s: int) -> None:
        #: Time between two heartbeats of a pod: longer in a larger fleet, so that their rate stays bounded.
        self.next_ms = beat_ms
        #: Pods that may be spending, over all gateways: the most of the last ten minutes, at least 1.
        self.live_servers = 1
        self._clock, self._beat_ms, self._beats_per_s = clock, beat_ms, beats_per_s
        self._most = RecentMaximum()
        #: Live pods seen by this process, and how many of them may be spending.
        self._here = self._spending_here = 0
        self._everywhere = self._present_everywhere = 0

    def add(self, *, here: int = 0, spending: int = 0) -> None:
        """Add to the pods that this process knows, and to those that may be spending."""
        self.note(self._here + here, self._spending_here + spending)

    def note(self, here: int, spending: int) -> None:
        """This process knows ``here`` pods, of which ``spending`` may be spending."""
        self._here, self._spending_here = here, spending
        self.live_servers = self._most.add(self._clock.monotonic(), max(spending, self._everywhere))
        self.next_ms = min(600_000, max(self._beat_ms, here * 1000 // self._beats_per_s))

    def note_everywhere(self, spending: int, present: int) -> None:
        """Record how many pods may be spending, and how many there are, over all gateways."""
        self._everywhere, self._present_everywhere = spending, present
        self.note(self._here, self._spending_here)

    def divisor(self, missing: int | None) -> int:
        """The divisor of one process.

        ``missing`` is how many processes of its name that counted a request, itself among them, are not
        counted yet. It is ``None`` if the process never counted a request: then it is in the divisor of no
        other pod, and divides by all, also by invented ones, so that it spends no more than its share when
        it begins.
        """
        if missing is None:
            return max(self.live_servers, self._here, self._present_everywhere)
        return max(self.live_servers, self._most.counted + missing)


class CountedLately:
    """Processes of one name that were counted, and are not any more. Times are monotonic.

    The number of live pods is a maximum over some time, so it still contains them.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def note(self, boot: str, now: float) -> None:
        self._until.pop(boot, None)
        self._until = {boot: until for boot, until in self._until.items() if until > now}
        if len(self._until) >= MAX_RIVALS:
            del self._until[next(iter(self._until))]
        self._until[boot] = now + RecentMaximum.WINDOW_S

    def has(self, boot: str, now: float) -> bool:
        return self._until.get(boot, now) > now
