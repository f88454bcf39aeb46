from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields
from controlplane.policies.state import Thing

MAX_ROWS = 200_000
MAX_BYTES = 64 * 1024 * 1024
#: After so many errors nobody reads on.
MAX_ERRORS = 100


class LineError(NamedTuple):
    #: 0 when it belongs to no line.
    line: int
    #: Where in the document, such as ``tenants.acme.quotas.requests.limit``.
    where: str
    message: str

    def __str__(self) -> str:
        place = ": ".join(part for part in (f"line {self.line}" if self.line else "", self.where) if part)
        return f"{place}: {self.message}" if place else self.message


class PlanErrors(InvalidEdit):
    """Everything that is wrong with a plan, in the order of its lines; nothing was changed."""

    def __init__(self, found: list[LineError]) -> None:
        self.found = sorted(found, key=lambda error: error.line)
        by_place: dict[str, list[str]] = {}
        for error in self.found:
            by_place.setdefault(error.where or "plan", []).append(
                f"Line {error.line}: {error.message}" if error.line else error.message
            )
        super().__init__(by_place)

    def __str__(self) -> str:
        return "\n".join(map(str, self.found))


@dataclass
class Plan:
    """What a file says, checked thing by thing; what it leaves out is not in here."""

    #: Flat fields of ``controlplane.policies.fields``; the environment's own have an empty name.
    things: dict[Thing, Fields] = field(default_factory=dict)
    #: Where each thing begins.
    lines: dict[Thing, int] = field(default_factory=dict)
    #: What the file has sections of: only in those a prune removes anything.
    sections: set[str] = field(default_factory=set)
    #: The environment it was written for; empty for any.
    environment: str = ""

    def __len__(self) -> int:
        return len(self.things)


class Errors:
    """Collects until there are too many."""

    def __init__(self) -> None:
        self.found: list[LineError] = []

    def add(self, line: int, where: str, message: str) -> None:
        self.found.append(LineError(line, where, message))
        if len(self.found) >= MAX_ERRORS:
            self.found.append(LineError(line + 1, "", "There may be more: reading stopped here."))
            self.settle()

    def settle(self) -> None:
        if self.found:
            raise PlanErrors(self.found)
