"""The alert that explains another one, so that one cause is one message: a pure function of open alerts.

An edge holds only for the same environment and, where both are about a dependency or a tenant, for the same.
Where both are about pods, the cause is about every pod of what it explains.
A cause hides only alerts of the same or a lower level and severity: others may be routed elsewhere.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import inf
from types import MappingProxyType
from typing import Protocol, TypeVar

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.rule import rule_of

#: Rule, or key of an alert, -> the rules, or the keys of alerts, that it explains.
EXPLAINS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {rule.key: rule.explains for rule in RULES if rule.explains}
    | {f"{rule.key}:{one}": explained for rule in RULES for one, explained in rule.one_explains.items()}
)
#: Causes about one dependency or one tenant: they explain alerts about the same one.
_OF_ONE = frozenset(rule.key for rule in RULES if rule.scope.about != "anything")
#: Rules that only such a cause explains: an alert about all tenants does not wait for it.
_BY_ONE_ONLY = frozenset(rule for cause in _OF_ONE for rule in EXPLAINS.get(cause, ())) - frozenset(
    rule for cause, rules in EXPLAINS.items() if cause not in _OF_ONE for rule in rules
)
EXPLAINED = frozenset(rule_of(rule) for rules in EXPLAINS.values() for rule in rules)
#: Without names of pods, their alerts are about more pods than a row names.
OF_PODS = frozenset(rule.key for rule in RULES if rule.pods is not None)
#: An alert that another one may explain waits for it.
WAIT_S = 15.0
#: A cause may begin later than what it explains: its figures take another way.
LATEST_S = 30.0
#: An alert that still fires so long after its cause was resolved is news.
REMAINS_S = 120.0


class Explainable(Protocol):
    """The facts of an alert that decide what explains it."""

    @property
    def environment(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def severity(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def subject_name(self) -> str: ...
    @property
    def pods(self) -> Sequence[str]: ...
    @property
    def true_since(self) -> datetime: ...


A = TypeVar("A", bound=Explainable)


def cause_of(alert: A, others: Iterable[A], *, latest_s: float = LATEST_S) -> A | None:
    """The alert that explains this one, or ``None``. Of several, the oldest.

    ``latest_s``: how much later than the alert it may have begun.
    """
    found = [other for other in others if _explains(other, alert, latest_s)]
    return min(found, key=lambda other: other.true_since, default=None)


class Causes:
    """Alerts that may explain others: one pass over them, and then each alert asks only those of its rule."""

    def __init__(self, alerts: Sequence[A]) -> None:
        self._possible = _by_explained(alerts)

    def of(self, alert: A) -> A | None:
        """Find the cause of one of the alerts, as ``cause_of`` does."""
        return cause_of(alert, _possible(alert, self._possible))


def by_cause(alerts: Sequence[A]) -> list[tuple[A, tuple[A, ...]]]:
    """Every alert that no other one explains, in the given order, and those that follow from it.

    Messages have gone out already, so a cause that began later explains too: pages show what is true now. An
    alert that fires is not hidden behind one that recovers.
    """
    possible = _by_explained(alerts)
    causes = {
        one.key: cause_of(one, _not_over(one, _possible(one, possible)), latest_s=inf) for one in alerts
    }
    found: dict[str, list[A]] = {}
    for one in alerts:
        root, passed = one, {one.key}
        while (above := causes[root.key]) is not None and above.key not in passed:
            root = above
            passed.add(root.key)
        if root is one:
            found.setdefault(one.key, [])
        else:
            found.setdefault(root.key, []).append(one)
    return [(one, tuple(found[one.key])) for one in alerts if one.key in found]


def _by_explained(alerts: Sequence[A]) -> dict[tuple[str, str], list[tuple[int, A]]]:
    """Rule or key that a cause explains, and the one thing that it is about -> causes, each with its place.

    Without this, each of a thousand alerts would be compared with all others.
    """
    found = defaultdict(list)
    for place, one in enumerate(alerts):
        about = one.subject_name if rule_of(one.key) in _OF_ONE else ""
        for explained in _explained_by(one):
            found[explained, about].append((place, one))
    return found


def _possible(alert: A, by_explained: Mapping[tuple[str, str], list[tuple[int, A]]]) -> list[A]:
    """The alerts that may explain this one, in the order of the page."""
    names = {(what, about) for what in (rule_of(alert.key), alert.key) for about in ("", alert.subject_name)}
    found = {place: one for name in names for place, one in by_explained.get(name, ())}
    return [found[place] for place in sorted(found)]


def _not_over(alert: A, others: Sequence[A]) -> list[A]:
    if alert.state != AlertState.FIRING:
        return list(others)
    return [other for other in others if other.state != AlertState.RECOVERING]


def waits(alert: Alert, now: float) -> bool:
    """Whether a cause may still arrive, or has just been resolved."""
    rule = rule_of(alert.key)
    if rule not in EXPLAINED or alert.level >= 3 or (rule in _BY_ONE_ONLY and not alert.subject_name):
        return False
    if alert.fired_at is not None and now - alert.fired_at.timestamp() < WAIT_S:
        return True
    ended = alert.cause.resolved_at if alert.cause is not None else None
    return ended is not None and now - ended.timestamp() < REMAINS_S


def _explained_by(cause: Explainable) -> set[str]:
    """The rules, and the keys of alerts, that a cause explains."""
    return {*EXPLAINS.get(rule_of(cause.key), ()), *EXPLAINS.get(cause.key, ())}


def _explains(cause: Explainable, alert: Explainable, latest_s: float) -> bool:
    if not {rule_of(alert.key), alert.key} & _explained_by(cause):
        return False
    if cause.state == AlertState.RESOLVED or cause.environment != alert.environment:
        return False
    if rule_of(cause.key) in _OF_ONE and cause.subject_name != alert.subject_name:
        return False
    if not _of_its_pods(cause, alert):
        return False
    if cause.level < alert.level or (cause.severity, alert.severity) == ("warning", "critical"):
        return False
    return (cause.true_since - alert.true_since).total_seconds() <= latest_s


def _of_its_pods(cause: Explainable, alert: Explainable) -> bool:
    """Whether the cause names every pod of the alert, if both are about pods."""
    if not cause.pods or rule_of(alert.key) not in OF_PODS:
        return True
    return bool(alert.pods) and set(alert.pods) <= set(cause.pods)
