"""How calls to one dependency failed lately, over all gateways."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controlplane.fleet.models import FailedCalls

#: Failed calls that are displayed.
MAX_SHOWN = 20
#: Gateways' rows that are read: far more than there are.
_MAX_ROWS = 100
#: Failures are counted over this time.
KINDS_S = 3600


#: Rows of all dependencies that are read.
_MAX_RECENT = 1_000
#: Steps in which gateways count, and how many of them are recent: with the one that runs.
STEP_S = 300
_RECENT_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class FailedCall:
    at: float
    pod: str
    kind: str
    #: ``failure`` or ``slow``.
    outcome: str
    trace: str


@dataclass(frozen=True, kw_only=True)
class FailuresSeen:
    #: Newest first.
    calls: tuple[FailedCall, ...] = ()
    #: Kind and number of the last hour, the most frequent first.
    kinds: tuple[tuple[str, int], ...] = ()
    #: From when they are counted, if that is less than an hour ago.
    since: float | None = None

    @property
    def total(self) -> int:
        return sum(number for _, number in self.kinds)


def recent_failures(environment: str, dependency: str, now: float) -> FailuresSeen:
    rows = FailedCalls.objects.filter(environment=environment, dependency=dependency).order_by("gateway")
    documents: list[dict[str, Any]] = list(rows.values_list("document", flat=True)[:_MAX_ROWS])
    # A pod that moves to another gateway reports its last calls there again.
    calls = {tuple(call[1:4]): call for document in documents for call in document["calls"]}
    kinds: Counter[str] = Counter()
    for document in documents:
        for step, counted in document["kinds"]:
            if step > now - KINDS_S:
                kinds.update(counted)
    newest = sorted(calls.values(), key=lambda call: (-call[0], call[1], -call[3]))[:MAX_SHOWN]
    since = min((document["since"] for document in documents), default=None)
    return FailuresSeen(
        calls=tuple(
            FailedCall(at=call[0], pod=call[1], kind=call[4], outcome=call[5], trace=call[6])
            for call in newest
        ),
        kinds=tuple(sorted(kinds.items(), key=lambda one: (-one[1], one[0]))),
        since=since if since is not None and since > now - KINDS_S else None,
    )


def recent_kinds(environment: str, now: float) -> tuple[float, dict[str, Counter[str]]]:
    """Since when, and dependency -> kinds of failed calls since then: of 5 to 10 minutes."""
    since = (int(now) // STEP_S - _RECENT_STEPS + 1) * STEP_S
    rows = FailedCalls.objects.filter(
        environment=environment, at__gt=datetime.fromtimestamp(since, UTC)
    ).order_by("dependency", "gateway")
    found: dict[str, Counter[str]] = {}
    for dependency, steps in rows.values_list("dependency", "document__kinds")[:_MAX_RECENT]:
        for step, counted in steps:
            if step >= since:
                found.setdefault(dependency, Counter()).update(counted)
    return since, found
