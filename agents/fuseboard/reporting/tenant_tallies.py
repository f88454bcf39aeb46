"""Requests by tenant of this pod since the last minute, in parts that fit into heartbeats.

Only the sync thread uses it.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from fuseboard.contract.tallies import MAX_TALLIED, Tally, TenantTally
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.numbered_parts import NumberedParts, take_rows

#: Between two looks at all tenants.
EVERY_S = 60.0
#: Bounds of one heartbeat: tenants, and bytes of their names. A tally takes at most 12 KB.
MAX_TENANTS, MAX_BYTES = 200, 8_000
#: Bytes of names in the last one, after which there is no other. A tally then takes at most 32 KB.
LAST_BYTES = 16_000
_MAX_COUNT = 2**31 - 1


class TenantTallies:
    def __init__(self, counters: Counters, now: Callable[[], float] = monotonic) -> None:
        self._counters, self._now = counters, now
        #: Tenant -> allowed and refused requests, as of the last look. As many as the counters have.
        self._seen: dict[str, tuple[int, int]] = {}
        self._waiting: deque[TenantTally] = deque()
        #: One at most.
        self._parts: NumberedParts[Tally] = NumberedParts()
        self._look_at = now()

    def next(self, *, leaving: bool = False) -> Tally | None:
        """The part for the next heartbeat: the last one again, until ``taken`` is called."""
        if leaving:
            return self._last()
        if not self._parts:
            if not self._waiting:
                if self._now() < self._look_at:
                    return None
                self._look()
            self._add(MAX_TENANTS, MAX_BYTES)
        return next(iter(self._parts))

    def _last(self) -> Tally:
        """The tenants that fit, and whether these are all."""
        self._look()
        # A gateway that has the unanswered part counts nothing else of its number.
        if not self._parts:
            self._add(MAX_TALLIED, LAST_BYTES)
        last = next(iter(self._parts))
        return replace(last, partial=last.partial or bool(self._waiting))

    def _add(self, most: int, room: int) -> None:
        part = take_rows(self._waiting, most, room, _size)
        partial = self._counters.left_out_tenants
        self._parts.add(lambda number: Tally(number=number, tenants=part, partial=partial))

    def taken(self) -> None:
        """A gateway answered the heartbeat."""
        self._parts.taken()

    def _look(self) -> None:
        self._look_at = self._now() + EVERY_S
        for tenant, counted in self._counters.by_tenant().items():
            allowed, refused = self._seen.get(tenant, (0, 0))
            if counted != (allowed, refused):
                self._seen[tenant] = counted
                more = counted[1] - refused
                asked = counted[0] - allowed + more
                self._waiting.append(TenantTally(tenant, min(asked, _MAX_COUNT), min(more, _MAX_COUNT)))


def _size(one: TenantTally) -> int:
    return len(one.tenant.encode())
