"""Which alert explains another one, so that one cause is one message: a pure function of the open alerts.

An edge holds only for the same environment and, where both are about a dependency, for the same dependency.
Where both are about pods, the cause is about every pod of what it explains.
An alert never hides one of a higher level or severity, because other people may get that one.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.rules import RULES
from controlplane.alerts.timings import rule_of

#: Rule -> the rules whose alerts it explains. Redis that is down explains a slow one, never the reverse.
EXPLAINS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ahead": ("lag", "unknown-revision"),
        "frozen": ("lag", "silent", "uncounted"),
        "all-local": ("check-errors", "check-failures", "local", "p99"),
        "check-failures": ("check-errors",),
        "gateway-away": ("silent", "uncounted"),
        "local": ("check-errors", "p99"),
        "open": ("bulkhead", "near", "retry-budget"),
        "pressure": ("shed", "unhealthy"),
        "postgres-down": ("worker-away",),
        "redis-down": ("all-local", "check-errors", "check-failures", "local", "p99"),
        "redis-ops": ("p99",),
        "rejected": ("lag",),
    }
)
EXPLAINED = frozenset(rule for rules in EXPLAINS.values() for rule in rules)
#: Without names of pods, their alerts are about more pods than a row names.
OF_PODS = frozenset(rule.key for rule in RULES if rule.pods is not None)
#: An alert that another one may explain waits for it.
WAIT_S = 15.0
#: A cause may begin later than what it explains: its figures take another way.
LATEST_S = 30.0
#: An alert that still fires so long after its cause was resolved is news.
REMAINS_S = 120.0


def cause_of(alert: Alert, others: Iterable[Alert]) -> Alert | None:
    """The alert that explains this one, or ``None``. Of several, the oldest."""
    found = [other for other in others if _explains(other, alert)]
    return min(found, key=lambda other: other.true_since, default=None)


def waits(alert: Alert, now: float) -> bool:
    """Whether a cause may still arrive, or has just been resolved."""
    if rule_of(alert.key) not in EXPLAINED or alert.level >= 3:
        return False
    if alert.fired_at is not None and now - alert.fired_at.timestamp() < WAIT_S:
        return True
    ended = alert.cause.resolved_at if alert.cause is not None else None
    return ended is not None and now - ended.timestamp() < REMAINS_S


def _explains(cause: Alert, alert: Alert) -> bool:
    if rule_of(alert.key) not in EXPLAINS.get(rule_of(cause.key), ()):
        return False
    if cause.state == AlertState.RESOLVED or cause.environment != alert.environment:
        return False
    if rule_of(cause.key) == "open" and cause.subject_name != alert.subject_name:
        return False
    if not _of_its_pods(cause, alert):
        return False
    if cause.level < alert.level or (cause.severity, alert.severity) == ("warning", "critical"):
        return False
    return (cause.true_since - alert.true_since).total_seconds() <= LATEST_S


def _of_its_pods(cause: Alert, alert: Alert) -> bool:
    """Whether the cause names every pod of the alert, if both are about pods."""
    if not cause.pods or rule_of(alert.key) not in OF_PODS:
        return True
    return bool(alert.pods) and set(alert.pods) <= set(cause.pods)
