"""One round of assigning reserved shares: the rows, what was heard, and what becomes of them."""

from dataclasses import dataclass, field

from msgspec import Struct

from controlplane.shares.cells import Cell
from fuseboard.contract.shares import HeldShare

Holder = tuple[str, str]


class Row(Struct, gc=False):
    """A share as Postgres has it; ``id`` is ``None`` while it is new."""

    id: int | None
    server: str
    boot: str
    level: int
    place: int
    offered: int
    terms: int
    renewals: int
    hold_ms: int

    @property
    def cell(self) -> Cell:
        return Cell(self.level, self.place)

    @property
    def holder(self) -> Holder:
        return self.server, self.boot

    @property
    def resting(self) -> bool:
        return not self.boot


class Promise(Struct, frozen=True, gc=False):
    """The part that a pod may spend; ``until`` is on this gateway's monotonic clock."""

    level: int
    place: int
    terms: int
    until: float


class Heartbeat(Struct, frozen=True, gc=False):
    """The newest heartbeat of a pod."""

    at: float
    share: HeldShare | None
    leaving: bool


@dataclass(slots=True)
class Round:
    """The decisions of one round."""

    begun: float
    rows: list[Row]
    #: By identity of the row.
    _changed: dict[int, Row] = field(default_factory=dict)
    deleted: list[int] = field(default_factory=list)
    renewed: set[Holder] = field(default_factory=set)
    heard: dict[Holder, Heartbeat] = field(default_factory=dict)

    @property
    def changed(self) -> list[Row]:
        return list(self._changed.values())

    def is_changed(self, row: Row) -> bool:
        return id(row) in self._changed

    def change(self, row: Row) -> None:
        self._changed[id(row)] = row

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.change(row)

    def delete(self, gone: list[Row]) -> None:
        identities = {id(row) for row in gone}
        self.rows = [row for row in self.rows if id(row) not in identities]
        self.deleted += [row.id for row in gone if row.id is not None]
