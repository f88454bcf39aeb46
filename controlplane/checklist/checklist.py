"""The checklist of an environment, in the order in which to read it."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from controlplane.checklist import breaker_lines, limit_lines, model_lines, operation_lines, protection_lines
from controlplane.checklist.lines import Line, Verdict
from controlplane.checklist.read_state import State, read_state

_GROUPS = (
    breaker_lines.GROUPS
    | protection_lines.GROUPS
    | model_lines.GROUPS
    | limit_lines.GROUPS
    | operation_lines.GROUPS
)


@dataclass(frozen=True, kw_only=True)
class Checklist:
    environment: str
    revision: int
    at: datetime
    lines: tuple[Line, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        found = Counter(line.verdict for line in self.lines)
        return {verdict: found[verdict] for verdict in Verdict}


def checklist(environment: str) -> Checklist:
    """Raises ``NotFound`` for an unknown environment, and ``OperationalError`` while Postgres is down."""
    return checklist_of(read_state(environment))


def checklist_of(state: State) -> Checklist:
    """A pure function."""
    return Checklist(
        environment=state.environment.slug,
        revision=state.environment.revision,
        at=state.now,
        lines=tuple(item.line(group, state) for group, items in _GROUPS.items() for item in items),
    )
