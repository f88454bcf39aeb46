"""Alert rules about locks, and about work that must not be done twice."""

from typing import Any

from controlplane.alerts.rules import headlines
from controlplane.alerts.rules.rule import BOTH, FLEET, Rule, Subject
from controlplane.phrases import count, is_or_are, name_or_count, percent, span
from controlplane.status.locks import WINDOW_S
from controlplane.status.status import Status

_MINUTES = f"the last {WINDOW_S / 60:.0f} minutes"


def _subject(_: Status) -> Subject:
    return Subject(kind="locks")


def _holders(status: Status) -> tuple[str, ...]:
    """The pod with the lock that is held longest."""
    pod = status.locks.longest_pod
    return (pod,) if pod else ()


def _lost(status: Status) -> str:
    locks, runs = status.locks.locks.get("lost", 0), status.locks.once.get("lost", 0)
    found = [
        *([count(locks, "lock")] if locks else []),
        *([count(runs, "claim") + " of work that must not be done twice"] if runs else []),
    ]
    return f"{' and '.join(found)} {is_or_are(status.locks.lost)} lost"


LOCK_RULES: tuple[Rule[Any], ...] = (
    Rule[Status](
        key="lock-held",
        severity="warning",
        said=headlines.lock_held,
        runbook="locks",
        scope=FLEET,
        subject=_subject,
        pods=_holders,
        value=lambda status: status.locks.longest_s,
        text=lambda _: "A lock is in use for long",
        detail=lambda status: (
            f"{status.locks.longest_pod} has it for {span(status.locks.longest_s)}. Other processes"
            " that want it wait, or give up."
        ),
    ),
    Rule[Status](
        key="lock-lost",
        severity="warning",
        said=headlines.lock_lost,
        runbook="locks",
        scope=FLEET,
        subject=_subject,
        pods=lambda status: status.locks.losing,
        value=lambda status: status.locks.lost,
        text=_lost,
        detail=lambda status: (
            f"In {_MINUTES}, at {name_or_count(status.locks.losing)}. Two processes may have done the"
            " same work: check what the blocks have written."
        ),
    ),
    *(
        Rule[Status](
            key="lock-failures",
            severity=severity,
            said=headlines.lock_failures,
            runbook="locks",
            scope=FLEET,
            subject=_subject,
            pods=lambda status: status.locks.failing,
            value=lambda status: status.locks.failed_share,
            names_thresholds=True,
            text=lambda status: (
                f"{percent(status.locks.failed_share)} of locks and claims fail: pods cannot ask Redis"
            ),
            detail=lambda status: (
                f"{status.locks.unavailable:,} of {status.locks.attempts:,} in {_MINUTES}."
                " This work is not done."
            ),
        )
        for severity in BOTH
    ),
)
