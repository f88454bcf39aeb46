"""The part of a status in ``/metrics``: small, so that a scrape reads one row and not a thousand pods."""

from typing import Any

from controlplane.status.backlogs import BacklogStatus
from controlplane.status.breakers import NO_DATA
from controlplane.status.status import Status

#: States and overrides of breakers as numbers; every other one lets calls through. What an operator forced
#: open has a number of its own: nobody is called for it.
_NUMBERS = {"open": 1, "half_open": 2, "forced_open": 3}


def measured(status: Status) -> dict[str, Any]:
    """A document for JSON. ``breakers``: name -> state as a number, and the part of the last hour open.

    ``backlogs``: name -> figures; those that were not read lately are left out.
    """
    facts = status.facts
    return {
        "lag_s": round(status.fleet.worst_lag_s, 3),
        "rejected": len(status.fleet.rejected),
        "unlimited": facts.unlimited,
        "breakers": {
            breaker.name: [
                _NUMBERS.get(breaker.effective, 0),
                round(breaker.open_share, 4),
            ]
            for breaker in status.breakers
            if breaker.effective != NO_DATA
        },
        "backlogs": {one.name: _backlog(one) for one in status.backlogs if one.fresh},
    }


def _backlog(one: BacklogStatus) -> dict[str, float]:
    figures = one.seen.figures
    return {
        "ready": figures.ready,
        "delayed": figures.delayed,
        "leased": figures.leased,
        "dead": figures.dead,
        "used": round(one.share, 4),
        "wait_s": round(one.seen.waiting_s, 3),
        "untaken_s": round(one.untaken_s, 3),
    }
