"""Alert rules about locks, and about work that must not be done twice."""

from typing import Any

from controlplane.alerts.rules.promql import IN_ENVIRONMENT, by_environment
from controlplane.alerts.rules.rule import (
    FLEET,
    Headline,
    PrometheusQuery,
    Rule,
    Subject,
    Threshold,
    Timing,
    jumping,
    seconds,
)
from controlplane.alerts.rules.thresholds import LOCK_HELD_S
from controlplane.phrases import count, is_or_are, name_or_count, percent, span
from controlplane.status.locks import MIN_ATTEMPTS, WINDOW_S
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


def _events(locks: str, once: str) -> str:
    """Locks, and claims of work that must not be done twice, with these events, in 10 minutes."""
    return (
        f'(sum by (environment) (increase(fuseboard_fleet_locks_total{{event=~"{locks}"}}[10m]))'
        f' + sum by (environment) (increase(fuseboard_fleet_once_total{{event=~"{once}"}}[10m])))'
    )


_FAILED_LOCKS = (
    f"{_events('unavailable', 'unavailable')}"
    f" / ({_events('acquired|unavailable', 'begun|unavailable')} >= {MIN_ATTEMPTS})"
)

LOCK_RULES: tuple[Rule[Any], ...] = (
    Rule[Status](
        key="lock-held",
        describes="a lock is in use for long",
        threshold=seconds(warning=LOCK_HELD_S, least=10.0, most=86_400.0),
        value=lambda status: status.locks.longest_s,
        timing=Timing(level=1, fires_after_s=0, resolves_after_s=60),
        scope=FLEET,
        pods=_holders,
        subject=_subject,
        text=lambda _: "A lock is in use for long",
        detail=lambda status: (
            f"{status.locks.longest_pod} has it for {span(status.locks.longest_s)}. Other processes"
            " that want it wait, or give up."
        ),
        headline=lambda _: Headline("A lock", "is", "in use for long"),
        weight=470,
        handled="The agent renews the lock as long as its process lives. It ends after that.",
        prometheus=PrometheusQuery(
            place=280,
            promql=by_environment("fuseboard_fleet_locks_longest_seconds") + " >",
            summary="A lock is in use for {{ $value | humanizeDuration }} " + IN_ENVIRONMENT,
        ),
        runbook="locks",
    ),
    Rule[Status](
        key="lock-lost",
        describes="a lock ended before its block did",
        threshold=Threshold(warning=0, unit="locks", scale=1.0, most=1_000_000, whole=True),
        value=lambda status: status.locks.lost,
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=60),
        scope=FLEET,
        pods=lambda status: status.locks.losing,
        subject=_subject,
        text=_lost,
        detail=lambda status: (
            f"In {_MINUTES}, at {name_or_count(status.locks.losing)}. Two processes may have done the"
            " same work: check what the blocks have written."
        ),
        headline=lambda status: Headline(
            count(status.locks.lost, "lock"), is_or_are(status.locks.lost), "lost"
        ),
        weight=320,
        prometheus=PrometheusQuery(
            place=290,
            promql=_events("lost", "lost") + " >",
            summary="{{ $value }} locks were lost " + IN_ENVIRONMENT,
        ),
        runbook="locks",
    ),
    Rule[Status](
        key="lock-failures",
        describes="pods get no locks, because they cannot ask Redis",
        # Share of locks, and of claims of work that must not be done twice, that fail because Redis
        # cannot be asked.
        threshold=jumping(warning=0.01, critical=0.1),
        value=lambda status: status.locks.failed_share,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=FLEET,
        pods=lambda status: status.locks.failing,
        subject=_subject,
        text=lambda status: (
            f"{percent(status.locks.failed_share)} of locks and claims fail: pods cannot ask Redis"
        ),
        detail=lambda status: (
            f"{status.locks.unavailable:,} of {status.locks.attempts:,} in {_MINUTES}. This work is not done."
        ),
        headline=lambda status: Headline(f"{percent(status.locks.failed_share)} of locks", "", "fail"),
        weight=330,
        handled="Work that needs a lock is not done. A pod never gives itself one.",
        prometheus=PrometheusQuery(
            place=270,
            promql=f"{_FAILED_LOCKS} >",
            summary="{{ $value | humanizePercentage }} of locks fail " + IN_ENVIRONMENT,
        ),
        runbook="locks",
    ),
)
