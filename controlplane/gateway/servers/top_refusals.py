"""The most refused tenants, endpoints, reasons and dependencies of each minute, until Postgres has them.

Counts are differences between heartbeats; endpoints, and the tenants of calls, are estimated from samples.
Memory is bounded, whatever pods send: names of a minute and list, and minutes that wait for Postgres.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controlplane.refusals.heavy_hitters import HeavyHitters
from controlplane.refusals.top_lists import (
    CALLS_BY_DEPENDENCY,
    CALLS_BY_ENDPOINT,
    CALLS_BY_REASON,
    CALLS_BY_TENANT,
    MINUTE_S,
    OF_TENANTS,
    REQUESTS_BY_ENDPOINT,
    REQUESTS_BY_REASON,
    REQUESTS_BY_TENANT,
    Kind,
)
from controlplane.series.kinds import tenant_number
from fuseboard.contract.refusal_samples import RefusalSample
from fuseboard.contract.sync import Counters

#: Names of one list and minute in memory. There, a count is short by at most 1 % of all refusals of the list;
#: rows have 50 of them, and pods do not list all tenants. ``short_by`` includes both.
SIZE = 100
#: Minutes that wait while Postgres is down.
MAX_WAITING = 30


@dataclass(slots=True)
class Minute:
    #: Its start in unix seconds.
    at: int
    lists: dict[Kind, HeavyHitters] = field(default_factory=dict)
    #: Postgres does not have it like this.
    dirty: bool = True

    def of(self, kind: Kind) -> HeavyHitters:
        found = self.lists.get(kind)
        if found is None:
            found = self.lists[kind] = HeavyHitters(SIZE)
        self.dirty = True
        return found


class TopRefusals:
    """The top lists of one environment."""

    def __init__(self) -> None:
        self.minutes: dict[int, Minute] = {}
        self._newest = 0

    def count(self, counted: Counters, wall: float, *, tenants_left_out: bool = False) -> None:
        """Add what a pod counted between two heartbeats; its lists may lack ``tenants_left_out``."""
        refused = sum(counted.refused.values())
        if refused:
            minute = self._minute(wall)
            for reason, times in counted.refused.items():
                minute.of(REQUESTS_BY_REASON).add(reason.value, times)
            by_tenant = minute.of(REQUESTS_BY_TENANT)
            for tenant in counted.tenants:
                if tenant.refused:
                    by_tenant.add(tenant.tenant, tenant.refused)
            rest = max(0, refused - sum([tenant.refused for tenant in counted.tenants]))
            # Some requests have no tenant. A pod lists its busiest tenants only: the rest can be of any.
            by_tenant.total += rest
            if tenants_left_out:
                by_tenant.missed += rest
        for one in counted.dependencies:
            for reason, times in one.refused.items():
                minute = self._minute(wall)
                minute.of(CALLS_BY_DEPENDENCY).add(one.dependency, times)
                minute.of(CALLS_BY_REASON).add(reason.value, times)

    def sample(self, samples: Iterable[tuple[float, RefusalSample]], wall: float) -> None:
        """Add samples with their weights."""
        for weight, one in samples:
            minute = self._minute(wall)
            if one.dependency:
                minute.of(CALLS_BY_TENANT).add(one.tenant, weight)
                minute.of(CALLS_BY_ENDPOINT).add(one.endpoint, weight)
            else:
                minute.of(REQUESTS_BY_ENDPOINT).add(one.endpoint, weight)

    def dirty(self) -> list[Minute]:
        return [minute for _, minute in sorted(self.minutes.items()) if minute.dirty]

    def written(self) -> None:
        """Forget the minutes that are over and that Postgres has."""
        for at in [at for at, minute in self.minutes.items() if at < self._newest and not minute.dirty]:
            del self.minutes[at]

    def erase(self, number: int) -> bool:
        """Forget a tenant, by its number. Returns whether it was there."""
        found = False
        for minute in self.minutes.values():
            for kind, counted in minute.lists.items():
                if kind.number not in OF_TENANTS:
                    continue
                for name in [name for name in counted.counts if tenant_number(name) == number]:
                    counted.forget(name)
                    minute.dirty = found = True
        return found

    def _minute(self, wall: float) -> Minute:
        # A minute that was written and forgotten does not begin again, also if the clock steps back.
        at = self._newest = max(self._newest, int(wall) // MINUTE_S * MINUTE_S)
        minute = self.minutes.get(at)
        if minute is None:
            minute = self.minutes[at] = Minute(at)
            if len(self.minutes) > MAX_WAITING:
                del self.minutes[min(self.minutes)]
        return minute
