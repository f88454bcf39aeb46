"""Requests by tenant of this pod since the last minute, in parts that fit into heartbeats.

Only the sync thread uses it.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from fuseboard.contract.tallies import MAX_TALLIED, Tally, TenantTally
from fuseboard.reporting.counters import Counters

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
        self._number = 0
        self._unanswered: Tally | None = None
        self._look_at = now()

    def next(self, *, leaving: bool = False) -> Tally | None:
        """The part for the next heartbeat: the last one again, until ``taken`` is called."""
        if leaving:
            return self._last()
        if self._unanswered is None:
            if not self._waiting:
                if self._now() < self._look_at:
                    return None
                self._look()
            self._unanswered = self._tally(MAX_TENANTS, MAX_BYTES)
        return self._unanswered

    def _last(self) -> Tally:
        """The tenants that fit, and whether these are all."""
        self._look()
        # A gateway that has the unanswered part counts nothing else of its number.
        last = self._unanswered or self._tally(MAX_TALLIED, LAST_BYTES)
        return replace(last, partial=last.partial or bool(self._waiting))

    def _tally(self, most: int, room: int) -> Tally:
        self._number += 1
        part = tuple(self._part(most, room))
        return Tally(number=self._number, tenants=part, partial=self._counters.left_out_tenants)

    def taken(self) -> None:
        """A gateway answered the heartbeat."""
        self._unanswered = None

    def _look(self) -> None:
        self._look_at = self._now() + EVERY_S
        for tenant, counted in self._counters.by_tenant().items():
            allowed, refused = self._seen.get(tenant, (0, 0))
            if counted != (allowed, refused):
                self._seen[tenant] = counted
                more = counted[1] - refused
                asked = counted[0] - allowed + more
                self._waiting.append(TenantTally(tenant, min(asked, _MAX_COUNT), min(more, _MAX_COUNT)))

    def _part(self, most: int, room: int) -> list[TenantTally]:
        part: list[TenantTally] = []
        while self._waiting and len(part) < most:
            room -= len(self._waiting[0].tenant.encode())
            if room < 0:
                break
            part.append(self._waiting.popleft())
        return part
