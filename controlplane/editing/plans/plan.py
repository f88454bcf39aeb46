from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields
from controlplane.policies.state import EntityKey

MAX_ROWS = 200_000
MAX_BYTES = 64 * 1024 * 1024
#: Reading stops after this number of errors.
MAX_ERRORS = 100


class LineError(NamedTuple):
    #: 0 for an error without a line.
    line: int
    #: The place in the document, such as ``tenants.acme.quotas.requests.limit``.
    where: str
    message: str

    def __str__(self) -> str:
        place = ": ".join(part for part in (f"line {self.line}" if self.line else "", self.where) if part)
        return f"{place}: {self.message}" if place else self.message


class PlanErrors(InvalidEdit):
    """All errors of a plan, ordered by line. Nothing was changed."""

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
    """The contents of a file, checked thing by thing, without what the file leaves out."""

    #: Flat fields, see ``controlplane.policies.fields``. Those of the environment have an empty name.
    things: dict[EntityKey, Fields] = field(default_factory=dict)
    #: The first line of each thing.
    lines: dict[EntityKey, int] = field(default_factory=dict)
    #: The kinds that have a section in the file. A prune removes things of these kinds only.
    sections: set[str] = field(default_factory=set)
    #: The environment it was written for; empty for any.
    environment: str = ""

    def __len__(self) -> int:
        return len(self.things)


class Errors:
    """Collects errors, up to a maximum."""

    def __init__(self) -> None:
        self.found: list[LineError] = []

    def add(self, line: int, where: str, message: str) -> None:
        self.found.append(LineError(line, where, message))
        if len(self.found) >= MAX_ERRORS:
            self.found.append(LineError(line + 1, "", "Too many errors: reading stopped here."))
            self.settle()

    def settle(self) -> None:
        if self.found:
            raise PlanErrors(self.found)
