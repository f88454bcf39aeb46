"""How calls ended, kept until the next report to the fleet's breaker."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseboard.breaker.fleet_breaker import Gate


@dataclass(slots=True)
class PendingReport:
    """Outcomes of one generation, not sent yet."""

    ok: int = 0
    failure: int = 0
    slow: int = 0
    #: Failures since the last success among them.
    tail: int = 0
    #: For how long the vendor asked to be left alone, in milliseconds.
    cooldown_ms: int = 0
    probes: list[tuple[str, int]] = field(default_factory=list)


class Tally:
    """Calls that went well under one generation of a breaker, and were not counted yet.

    Nearly every call ends so: a number here, and everything else when the next report is sent, or
    before anything else is counted.
    """

    __slots__ = ("gate", "generation", "ok", "scheduled")

    def __init__(self, gate: "Gate", generation: int) -> None:
        self.gate = gate
        self.generation = generation
        self.ok = 0
        #: It is in the list of those that will be counted.
        self.scheduled = False

    def count(self) -> None:
        """Count them wherever outcomes are counted."""
        if self.ok:
            ok, self.ok = self.ok, 0
            self.gate.went_well(ok, self.generation)
