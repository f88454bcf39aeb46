"""The status of one environment: what its facts mean, before anything is drawn or judged."""

from dataclasses import dataclass

from controlplane.fleet.live import FleetFigures
from controlplane.status.breakers import BreakerStatus, breaker_statuses
from controlplane.status.facts import Facts
from controlplane.status.servers import FleetSummary, fleet_summary, server_statuses


@dataclass(frozen=True, kw_only=True)
class Status:
    facts: Facts
    #: Worst first.
    breakers: tuple[BreakerStatus, ...]
    fleet: FleetSummary

    @property
    def figures(self) -> FleetFigures:
        return self.facts.figures


def status_of(facts: Facts) -> Status:
    """A pure function: the same facts give the same status in every process."""
    return Status(
        facts=facts,
        breakers=breaker_statuses(facts),
        fleet=fleet_summary(facts, server_statuses(facts)),
    )
