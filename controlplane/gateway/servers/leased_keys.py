"""Since when pods spend requests of a tenant from fleet leases."""

from collections.abc import Iterable

from controlplane.gateway.clock import Clock

#: A key that no pod leases for this long has cooled. Pods keep a lease for a minute after a key cools.
COOL_S = 60.0

#: Tenant and rule.
Key = tuple[str, str]


class LeasedKeys:
    """Remembers the keys of the last figures only, so it is as small as these are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Key -> when it was first leased, and last; in wall time.
        self._seen: dict[Key, tuple[float, float]] = {}

    def note(self, leased: Iterable[Key]) -> None:
        now = self._clock.wall()
        found = {key: (self._seen.get(key, (now, now))[0], now) for key in leased}
        cooling = {key: seen for key, seen in self._seen.items() if 0 <= now - seen[1] < COOL_S}
        # At most those of this minute, and the list of a moment has a bounded length.
        self._seen = {**cooling, **found}

    def since(self, key: Key) -> float | None:
        seen = self._seen.get(key)
        return None if seen is None else seen[0]
