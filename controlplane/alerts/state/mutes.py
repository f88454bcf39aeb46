"""The mute that applies to an alert: a pure function of the mutes, the alert, and the time.

Nothing stores that an alert is muted. A mute therefore ends everywhere at the same moment, without a process
that ends it.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Protocol

from django.db.models import Q, QuerySet

from controlplane.alerts.models import Mute, Muted
from controlplane.alerts.rules.rule import rule_of

WEEK = timedelta(days=7)
#: An alert of level 3 needs a person at once: longer mutes do not apply to it.
LONGEST_OF_LEVEL_3 = timedelta(hours=1)
#: An alert about more pods concerns the fleet, and no mute of pods hides it.
MAX_PODS = 200


class Matchable(Protocol):
    """The facts of an alert that a mute is compared with."""

    key: str
    level: int
    subject_kind: str
    subject_name: str
    pods: list[str]


def not_ended(environment: str, now: datetime) -> QuerySet[Mute]:
    """Mutes that apply now or later."""
    rows = Mute.objects.filter(environment=environment, ended_at=None)
    return rows.filter(Q(weekly=True) | Q(ends_at__gt=now)).order_by("starts_at", "pk")


def mute_of(mutes: Iterable[Mute], alert: Matchable, now: datetime) -> Muted | None:
    """The mute that applies to the alert now: the one that lasts longest. ``None`` for no mute."""
    found = [
        Muted(mute=mute.pk, by=mute.by, reason=mute.reason, until=until, weekly=mute.weekly)
        for mute in mutes
        if (until := active_until(mute, now)) is not None and matches(mute, alert)
    ]
    return max(found, key=lambda one: (one.until, -one.mute), default=None)


def matches(mute: Mute, alert: Matchable) -> bool:
    """Whether rule, dependency and pods of the mute are those of the alert, at whatever time."""
    if alert.level >= 3 and mute.ends_at - mute.starts_at > LONGEST_OF_LEVEL_3:
        return False
    if mute.rule and mute.rule != rule_of(alert.key):
        return False
    if mute.dependency and (alert.subject_kind, alert.subject_name) != ("breaker", mute.dependency):
        return False
    # An alert about two pods stays if one of them is not muted.
    return not mute.pod or (bool(alert.pods) and all(_named(mute.pod, pod) for pod in alert.pods))


def active_until(mute: Mute, now: datetime) -> datetime | None:
    """The end of the period that contains this moment, or ``None``."""
    starts, ends = period_of(mute, now)
    return ends if mute.ended_at is None and starts <= now < ends else None


def period_of(mute: Mute, now: datetime) -> tuple[datetime, datetime]:
    """The present period; the next one if there is none now, or a person ended it; or the last one."""
    if mute.skipped_until is not None:
        now = max(now, mute.skipped_until)
    if not mute.weekly or now < mute.ends_at:
        return mute.starts_at, mute.ends_at
    passed = WEEK * ((now - mute.starts_at) // WEEK)
    starts, ends = mute.starts_at + passed, mute.ends_at + passed
    return (starts, ends) if now < ends else (starts + WEEK, ends + WEEK)


def words_of(mute: Mute) -> str:
    """The alerts that it matches, as a person reads it."""
    parts = (("rule", mute.rule), ("dependency", mute.dependency), ("pod", mute.pod))
    return ", ".join(f"{kind} {name}" for kind, name in parts if name)


def _named(pattern: str, pod: str) -> bool:
    return pod.startswith(pattern[:-1]) if pattern.endswith("*") else pod == pattern
