"""What tenants of one environment asked for in each hour, as pods tally it, until Postgres has it.

A tally counts in the hour in which it arrives, about a minute late. A tally that is repeated counts once. The
names of tenants are kept as numbers, because there can be many.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from controlplane.series.kinds import tenant_number, tenant_part
from fuseboard.contract.sync import SyncRequest

HOUR_S = 3_600
#: Tenants of one hour, about 15 MB. The others are left out, and the hour is marked.
MOST_TENANTS = 100_000
#: A pod that is heard for this long and has sent no tally is of an older release.
SILENT_S = 150.0
#: How long after its end an hour stays in memory, while Postgres is down.
KEPT_S = 3_600
#: Between two looks, this much is known at most.
_MOST_COVERED_S = 30.0
#: Requests that were asked, and refused, in one number: half the memory of a pair.
_ASKED, _REFUSED = 32, 2**32 - 1


@dataclass(slots=True)
class Hour:
    #: Its start in unix seconds.
    at: int
    #: Part -> number of a tenant -> what it asked for.
    parts: dict[int, dict[int, int]] = field(default_factory=dict)
    tenants: int = 0
    #: Parts that Postgres does not have like this.
    dirty: set[int] = field(default_factory=set)
    known_s: float = 0.0
    #: Requests of some tenants are in no tally.
    partial: bool = False

    def add(self, tenant: str, asked: int, refused: int) -> None:
        number = tenant_number(tenant)
        part = tenant_part(number)
        counts = self.parts.setdefault(part, {})
        if number not in counts:
            if self.tenants >= MOST_TENANTS:
                self.partial = True
                return
            self.tenants += 1
        counts[number] = counts.get(number, 0) + (asked << _ASKED) + refused
        self.dirty.add(part)

    def columns(self, part: int) -> tuple[list[int], list[int], list[int]]:
        """The numbers of tenants, what they asked, and what was refused."""
        counts = self.parts[part]
        return list(counts), [n >> _ASKED for n in counts.values()], [n & _REFUSED for n in counts.values()]


@dataclass(slots=True)
class _Pod:
    boot: str
    since: float
    #: Of its last tally; 0 if it sent none.
    number: int = 0


class TenantHours:
    def __init__(self) -> None:
        self.hours: dict[int, Hour] = {}
        self._pods: dict[str, _Pod] = {}
        self._heard = False
        self._covered_until: float | None = None

    def hear(self, beat: SyncRequest, now: float, wall: float) -> None:
        """Take the tally of a heartbeat that is neither late nor repeated."""
        self._heard = True
        if self._covered_until is None:
            self._covered_until = now
        pod = self._pods.get(beat.server)
        if pod is None or pod.boot != beat.boot:
            pod = self._pods[beat.server] = _Pod(beat.boot, now)
        tally = beat.tally
        if tally is None:
            if not pod.number and now - pod.since > SILENT_S and beat.counters.requests:
                self._hour(wall).partial = True
            return
        if tally.number <= pod.number:
            return
        pod.number = tally.number
        hour = self._hour(wall)
        hour.partial |= tally.partial
        for one in tally.tenants:
            hour.add(one.tenant, one.asked, one.refused)

    def look(self, now: float, wall: float, present: Container[str]) -> None:
        """Count the time since the last look as known, if a pod was heard, and forget what is too old."""
        since = now if self._covered_until is None else self._covered_until
        self._covered_until = now
        if self._heard:
            hour = self._hour(wall)
            hour.known_s = min(HOUR_S, hour.known_s + min(now - since, _MOST_COVERED_S))
        self._heard = False
        for at in [at for at in self.hours if at + HOUR_S + KEPT_S <= wall]:
            del self.hours[at]
        for name in [name for name in self._pods if name not in present]:
            del self._pods[name]

    def written(self, wall: float) -> None:
        """Postgres has everything: only the present hour can get more."""
        present = int(wall) // HOUR_S * HOUR_S
        for at in [at for at, hour in self.hours.items() if at < present and not hour.dirty]:
            del self.hours[at]

    def _hour(self, wall: float) -> Hour:
        at = int(wall) // HOUR_S * HOUR_S
        hour = self.hours.get(at)
        if hour is None:
            hour = self.hours[at] = Hour(at)
        return hour
