"""By how much one process divides a limit without Redis.

A process that counted a request divides by processes that counted one: others can be invented. One that
shares its name is counted for the other pods after some heartbeats only; until then, it adds itself.
"""

from controlplane.gateway.servers.duplicates import MAX_RIVALS
from controlplane.gateway.servers.liveness import RecentMaximum


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


def divisor(*, live: int, counted: int, everyone: int, missing: int | None) -> int:
    """The divisor of one process.

    ``live`` is ``counted``, and at least 1. Of ``everyone``, some may be invented. ``missing`` is how many
    processes of its name that counted a request, itself among them, are not in ``counted``. It is ``None`` if
    the process never counted a request: then it is in the divisor of no other pod, and divides by all, so
    that it spends no more than its share when it begins.
    """
    if missing is None:
        return max(live, everyone)
    return max(live, counted + missing)
