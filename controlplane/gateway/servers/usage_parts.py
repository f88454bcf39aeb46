"""The usage of language models by the pods of one environment, until Postgres has it.

A part is answered only when Postgres has it, so nothing here must survive a crash: pods send it again. For
the same reason, a part for which there is no room is left out.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from controlplane.series.kinds import tenant_number
from fuseboard.contract.sync import SyncRequest
from fuseboard.contract.usage import UsagePart, UsageRow

HOUR_S = 3_600
#: Rows in memory, about 50 MB. Without Postgres, the others stay in their pods.
MAX_WAITING = 100_000
#: Processes whose last number is remembered. A part of another one is written, and refused as counted.
MAX_KNOWN = 50_000
#: Models of one service since the start of this process, and services with models of their own. Pods are not
#: trusted: one that invents models takes the names of its own service only.
MAX_MODELS, MAX_SERVICES = 200, 500
#: The oldest hour that a pod can report, as an age.
MAX_AGO_S = 7 * 86_400
#: A tenant that was erased has no name in what pods began to count before, or so soon after.
ERASED_UNTIL_S = 30.0

#: Server and boot.
Process = tuple[str, str]


class WaitingPart(Struct, frozen=True, gc=False):
    process: Process
    number: int
    service: str
    #: The start of the hour in unix seconds.
    hour: int
    rows: tuple[UsageRow, ...]


class UsageParts:
    def __init__(self) -> None:
        #: In the order of their arrival. Those of one process come in the order of their numbers.
        self._waiting: dict[tuple[Process, int], WaitingPart] = {}
        self._rows = 0
        #: The last part of a process that Postgres has, as far as this gateway knows.
        self._written: dict[Process, int] = {}
        #: Service -> the models and dependencies that it has named.
        self._models: dict[str, set[tuple[str, str]]] = {}
        #: Number of a tenant -> when it was erased: pods may report what they counted before for days.
        self._erased: dict[int, float] = {}
        #: Parts that had no room.
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def record(self, beat: SyncRequest, wall: float) -> int:
        """Take the parts of a heartbeat, also of a stale one. Returns the number of the last in Postgres."""
        process = (beat.server, beat.boot)
        written = self._written.get(process, 0)
        for part in beat.usage:
            if part.number <= written or (process, part.number) in self._waiting:
                continue
            if self._rows + _rows_of(part) > MAX_WAITING:
                # The parts after it must wait too: Postgres takes numbers that rise.
                self.left_out += 1
                break
            self._add(process, beat.service, part, wall)
        return written

    def some(self, rows: int) -> list[WaitingPart]:
        """The oldest parts with at least one, and with about this many rows."""
        found: list[WaitingPart] = []
        for part in self._waiting.values():
            found.append(part)
            rows -= _rows_of(part)
            if rows <= 0:
                break
        return found

    def written(self, parts: Iterable[WaitingPart]) -> None:
        """Postgres has these, or refuses them for ever."""
        for part in parts:
            if self._waiting.pop((part.process, part.number), None) is not None:
                self._rows -= _rows_of(part)
            self._written[part.process] = max(part.number, self._written.pop(part.process, 0))
        for process in list(islice(self._written, max(0, len(self._written) - MAX_KNOWN))):
            del self._written[process]

    def is_erased(self, tenant: int, at: float) -> bool:
        """Whether ``erase`` was called for this."""
        return self._erased.get(tenant, 0.0) >= at

    def erase(self, tenant: int, *, at: float) -> bool:
        """Forget the name of a tenant that was erased ``at`` this wall time, also in parts that come later.

        Returns whether it was there.
        """
        oldest = at - MAX_AGO_S
        self._erased = {number: one for number, one in self._erased.items() if one > oldest} | {tenant: at}
        erased = False
        for key, part in self._waiting.items():
            rows = tuple(
                replace(row, tenant="") if row.tenant and tenant_number(row.tenant) == tenant else row
                for row in part.rows
            )
            if rows != part.rows:
                self._waiting[key] = replace(part, rows=rows)
                erased = True
        return erased

    def _add(self, process: Process, service: str, part: UsagePart, wall: float) -> None:
        began = wall - min(part.ago_s, MAX_AGO_S)
        rows = self._bounded(service, self._unnamed(part.rows, began))
        hour = int(began) // HOUR_S * HOUR_S
        self._waiting[process, part.number] = WaitingPart(process, part.number, service, hour, rows)
        self._rows += _rows_of(part)

    def _unnamed(self, rows: Sequence[UsageRow], began: float) -> Sequence[UsageRow]:
        """The rows, without tenants that were erased since the pod began to count them."""
        erased = {number for number, at in self._erased.items() if began < at + ERASED_UNTIL_S}
        if not erased:
            return rows
        return [
            replace(row, tenant="") if row.tenant and tenant_number(row.tenant) in erased else row
            for row in rows
        ]

    def _bounded(self, service: str, rows: Sequence[UsageRow]) -> tuple[UsageRow, ...]:
        """The rows, without the names of models if the service has too many."""
        if service not in self._models and len(self._models) >= MAX_SERVICES:
            service = ""
        known = self._models.setdefault(service, set())
        kept = []
        for row in rows:
            model = (row.model, row.dependency)
            if model not in known:
                if len(known) >= MAX_MODELS:
                    kept.append(replace(row, model="", dependency=""))
                    continue
                known.add(model)
            kept.append(row)
        return tuple(kept)


def _rows_of(part: UsagePart | WaitingPart) -> int:
    """At least one: a part without rows takes memory too."""
    return max(1, len(part.rows))
