"""What the page of a breaker displays besides its state: how calls failed, and what each pod sees."""

from dataclasses import dataclass

from django.db import InterfaceError, OperationalError

from controlplane.fleet.failed_calls import FailuresSeen, recent_failures
from dashboard.live.breakers import Breaker, PodView
from dashboard.live.overview import Live

#: Pods that are listed, however many there are: those that differ first.
MOST_DIFFERING = 40
MOST_AGREEING = 24


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What pods see. In a large fleet only those that differ are named."""

    #: See another state than the fleet, or decide alone.
    differing: tuple[PodView, ...] = ()
    more_differing: int = 0
    agreeing: tuple[PodView, ...] = ()
    more_agreeing: int = 0

    @property
    def listed(self) -> tuple[PodView, ...]:
        return self.differing + self.agreeing


def agreement_of(breaker: Breaker | None) -> Agreement:
    seen = breaker.seen if breaker is not None else ()
    differing = [view for view in seen if breaker is not None and (view.face != breaker.face or view.local)]
    agreeing = [view for view in seen if breaker is not None and view.face == breaker.face and not view.local]
    few = agreeing if len(agreeing) <= MOST_AGREEING else []
    return Agreement(
        differing=tuple(differing[:MOST_DIFFERING]),
        more_differing=max(0, len(differing) - MOST_DIFFERING),
        agreeing=tuple(few),
        more_agreeing=len(agreeing) - len(few),
    )


def failures_of(live: Live, name: str) -> FailuresSeen | None:
    """``None`` while Postgres, which has them, is unavailable: the rest of the page stays."""
    try:
        return recent_failures(live.facts.environment, name, live.facts.now)
    except (OperationalError, InterfaceError):
        return None
