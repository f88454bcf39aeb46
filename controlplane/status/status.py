"""The status of one environment: what its facts mean, before anything is drawn or judged."""

from dataclasses import dataclass

from controlplane.fleet.live import FleetFigures
from controlplane.status.backlogs import BacklogStatus, backlog_statuses
from controlplane.status.breakers import BreakerStatus, breaker_statuses
from controlplane.status.facts import Facts
from controlplane.status.locks import LocksStatus, locks_status
from controlplane.status.permits import PermitsStatus, permits_status
from controlplane.status.servers import FleetSummary, fleet_summary, server_statuses


@dataclass(frozen=True, kw_only=True)
class Status:
    facts: Facts
    #: Worst first.
    breakers: tuple[BreakerStatus, ...]
    fleet: FleetSummary
    #: Backlogs that were ever used, the fullest first.
    backlogs: tuple[BacklogStatus, ...]
    locks: LocksStatus
    permits: PermitsStatus

    @property
    def figures(self) -> FleetFigures:
        return self.facts.figures


def status_of(facts: Facts) -> Status:
    """A pure function: the same facts give the same status in every process."""
    breakers = breaker_statuses(facts)
    return Status(
        facts=facts,
        breakers=breakers,
        fleet=fleet_summary(facts, server_statuses(facts)),
        backlogs=backlog_statuses(facts, breakers),
        locks=locks_status(facts),
        permits=permits_status(facts),
    )
