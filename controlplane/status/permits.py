"""Permits that sidecars gave to other processes, and that ended without a report."""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.status.facts import Facts

#: Fewer permits without a report say nothing about a share of them.
MIN_UNREPORTED = 20


@dataclass(frozen=True, kw_only=True)
class PodPermits:
    """The permits of one sidecar in about ``controlplane.status.locks.WINDOW_S``."""

    pod: str
    issued: int
    #: Permits that ended without a report: after their time, or because newer ones needed their room.
    unreported: int

    @property
    def share(self) -> float:
        """The part of its permits without a report; 0 for few."""
        if self.unreported < MIN_UNREPORTED:
            return 0.0
        # A permit can end long after it was given.
        return self.unreported / max(self.issued, self.unreported)


@dataclass(frozen=True, kw_only=True)
class PermitsStatus:
    #: Live sidecars with permits, those with the largest share without a report first.
    pods: tuple[PodPermits, ...]

    @property
    def worst(self) -> PodPermits:
        return self.pods[0] if self.pods else PodPermits(pod="", issued=0, unreported=0)

    def above(self, share: float) -> tuple[str, ...]:
        """The sidecars of which a larger share has no report."""
        return tuple(one.pod for one in self.pods if one.share > share)


def permits_status(facts: Facts) -> PermitsStatus:
    pods = [permits_of(server.name, server.permits) for server in facts.live_servers if server.permits]
    return PermitsStatus(pods=tuple(sorted(pods, key=lambda one: (-one.share, one.pod))))


def permits_of(pod: str, counts: Mapping[str, int]) -> PodPermits:
    """``counts`` as the row of a pod has them: without those that are 0."""
    unreported = counts.get("expired", 0) + counts.get("displaced", 0)
    return PodPermits(pod=pod, issued=counts.get("issued", 0), unreported=unreported)
