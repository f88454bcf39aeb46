"""Requests of the tenants of one environment by hour, as pods tally them, until Postgres has them.

A tally counts in the hour in which it arrives, about a minute late. A tally that is repeated counts once. The
names of tenants are kept as numbers, because there can be many.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from controlplane.series.kinds import tenant_number, tenant_part
from fuseboard.contract.sync import SyncRequest

HOUR_S = 3_600
#: Tenants of one hour, about 15 MB. The others are left out, and the hour is marked.
MAX_TENANTS = 100_000
#: Tenants that one pod brings into an hour: as many as an agent counts. So a pod that invents some leaves
#: room for those of others.
MAX_OF_POD = 10_000
#: Requests of a tenant in an hour, as a column of Postgres takes them.
MAX_COUNTED = 2**31 - 1
#: A pod that is heard for this long and has sent no tally is of an older release.
SILENT_S = 150.0
#: How long after its end an hour stays in memory, while Postgres is down.
KEPT_S = 3_600
#: Between two looks, this much is known at most.
_MAX_COVERED_S = 30.0
#: Requests that were asked, and refused, in one number: half the memory of a pair.
_ASKED, _REFUSED = 32, 2**32 - 1


@dataclass(slots=True)
class Hour:
    #: Its start in unix seconds.
    at: int
    #: It was written and forgotten before: the wall clock stepped back. As that must not be overwritten, it
    #: has a writer of its own, which readers add to the other one.
    again: bool = False
    writer: int | None = None
    #: Part -> number of a tenant -> what it asked for.
    parts: dict[int, dict[int, int]] = field(default_factory=dict)
    tenants: int = 0
    #: Pod -> how many of them it brought.
    brought: dict[str, int] = field(default_factory=dict)
    #: Parts that Postgres does not have like this.
    dirty: set[int] = field(default_factory=set)
    known_s: float = 0.0
    #: Requests of some tenants are in no tally.
    partial: bool = False

    def add(self, tenant: str, asked: int, refused: int, *, pod: str = "") -> None:
        number = tenant_number(tenant)
        part = tenant_part(number)
        counts = self.parts.setdefault(part, {})
        held = counts.get(number)
        if held is None:
            brought = self.brought.get(pod, 0)
            if self.tenants >= MAX_TENANTS or brought >= MAX_OF_POD:
                self.partial = True
                return
            self.brought[pod] = brought + 1
            self.tenants += 1
            held = 0
        # Pods are not trusted: a sum that Postgres does not take would be written again and again.
        total = min((held >> _ASKED) + asked, MAX_COUNTED)
        counts[number] = total << _ASKED | min((held & _REFUSED) + min(refused, asked), total)
        self.dirty.add(part)

    def erase(self, number: int) -> bool:
        """Forget a tenant. Returns whether it was there."""
        part = tenant_part(number)
        if self.parts.get(part, {}).pop(number, None) is None:
            return False
        self.tenants -= 1
        # Also if Postgres has nothing of it: a write may be on its way.
        self.dirty.add(part)
        return True

    def columns(self, part: int) -> tuple[list[int], list[int], list[int]]:
        """The numbers of tenants, what they asked, and what was refused."""
        counts = self.parts[part]
        return list(counts), [n >> _ASKED for n in counts.values()], [n & _REFUSED for n in counts.values()]


@dataclass(slots=True)
class _Pod:
    boot: str
    since: float
    #: Number of its last tally; 0 if it sent none.
    number: int = 0


class TenantHours:
    def __init__(self) -> None:
        self.hours: dict[int, Hour] = {}
        self._pods: dict[str, _Pod] = {}
        self._heard = False
        self._covered_until: float | None = None
        #: The newest hour that is forgotten.
        self._forgotten = 0

    def record(self, beat: SyncRequest, now: float, wall: float, *, stale: bool = False) -> None:
        """Take the tally of a heartbeat. A stale one is repeated, or of a process that was replaced."""
        self._heard = True
        if stale:
            self._miss(beat, wall)
            return
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
        hour = self._hour(wall)
        # Also if it is repeated: a pod that leaves says now that it counted more.
        hour.partial |= tally.partial
        if tally.number <= pod.number:
            return
        pod.number = tally.number
        for one in tally.tenants:
            hour.add(one.tenant, one.asked, one.refused, pod=beat.server)

    def _miss(self, beat: SyncRequest, wall: float) -> None:
        """Two processes with one name: the pod counts as answered, but its tally is not counted."""
        pod = self._pods.get(beat.server)
        if beat.tally is not None and beat.tally.tenants and (pod is None or pod.boot != beat.boot):
            self._hour(wall).partial = True

    def look(self, now: float, wall: float, present: Container[str]) -> None:
        """Count the time since the last look as known, if a pod was heard, and forget what is too old."""
        since = now if self._covered_until is None else self._covered_until
        self._covered_until = now
        if self._heard:
            hour = self._hour(wall)
            hour.known_s = min(HOUR_S, hour.known_s + min(now - since, _MAX_COVERED_S))
        self._heard = False
        self._forget([at for at in self.hours if at + HOUR_S + KEPT_S <= wall])
        for name in [name for name in self._pods if name not in present]:
            del self._pods[name]

    def erase(self, number: int, *, before: float) -> bool:
        """Forget a tenant in the hours that began before this unix time. Returns whether it was there."""
        return sum(hour.erase(number) for hour in self.hours.values() if hour.at <= before) > 0

    def written(self, wall: float) -> None:
        """Postgres has everything: only the present hour can get more."""
        present = int(wall) // HOUR_S * HOUR_S
        self._forget([at for at, hour in self.hours.items() if at < present and not hour.dirty])

    def _forget(self, hours: list[int]) -> None:
        for at in hours:
            del self.hours[at]
            self._forgotten = max(self._forgotten, at)

    def _hour(self, wall: float) -> Hour:
        at = int(wall) // HOUR_S * HOUR_S
        hour = self.hours.get(at)
        if hour is None:
            hour = self.hours[at] = Hour(at, again=at <= self._forgotten)
        return hour
