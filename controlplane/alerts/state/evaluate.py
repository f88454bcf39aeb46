"""Rules applied to a status: which alerts fire now, and since when. For the worker, the API and pages."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.every import RULE_OF_KEY, RULES
from controlplane.alerts.rules.rule import Finding, Rule, Severity, bounded_key, rule_of
from controlplane.alerts.rules.settings import settings_of
from controlplane.alerts.state.stored_alerts import StoredAlert
from controlplane.status.status import Status

_NOTHING: Mapping[str, StoredAlert] = MappingProxyType({})
_NONE_FIRE: Mapping[str, Severity] = MappingProxyType({})


def evaluate(
    status: Status, rules: Iterable[Rule[Any]] = RULES, firing: Mapping[str, Severity] = _NONE_FIRE
) -> list[Finding]:
    """A pure function: the alerts that fire now, critical first, otherwise in the order of the rules.

    ``firing``: key -> severity of the alerts that fired already. They end at another figure than they began.
    """
    found: dict[str, Finding] = {}
    for rule in rules:
        settings = settings_of(status.facts.alert_rules, rule.key)
        fired = []
        for one in rule.scope.each(status):
            severity = settings.severity(rule, one, firing.get(rule.key_of(one)) if firing else None)
            if severity is not None:
                fired.append(rule.finding(one, severity, settings.words_of(rule, one, severity)))
        for finding in sorted(fired, key=lambda finding: (_mild(finding), finding.key)):
            found.setdefault(finding.key, finding)
    return sorted(found.values(), key=_mild)


def _mild(finding: Finding) -> bool:
    return finding.severity != "critical"


def firing_severities(alerts: Iterable[Alert | StoredAlert]) -> dict[str, Severity]:
    """Key -> severity of the alerts that fire. One that recovers has come below its threshold already."""
    return {
        one.key: "critical" if one.severity == "critical" else "warning"
        for one in alerts
        if one.state == AlertState.FIRING
    }


def idle_keys(status: Status, rules: Iterable[Rule[Any]] = RULES) -> frozenset[str]:
    """A pure function: the alerts about which there is too little traffic to say anything."""
    return frozenset(
        rule.key_of(one)
        for rule in rules
        if rule.idle is not None and settings_of(status.facts.alert_rules, rule.key).enabled
        for one in rule.scope.each(status)
        if rule.idle(one)
    )


def is_blind(status: Status, key: str) -> bool:
    """Whether the figures behind an alert are missing, so that nothing is concluded about it."""
    rule = RULE_OF_KEY.get(rule_of(key))
    if rule is None:
        return not status.figures.gateways
    if not status.figures.gateways and rule.needs_gateway:
        return True
    needed = [one for one in status.facts.blind if one.source == rule.needs]
    if any(not one.only for one in needed):
        return True
    # A primary of a Cluster counts only some of the budgets.
    unseen = [*(name for one in needed for name in one.only), *rule.scope.unseen(status)]
    return any(key == bounded_key(f"{rule.key}:{name}") for name in unseen)


class FirstSeen:
    """Remembers, for one observer, when it first saw an alert whose beginning the status does not show.

    What Postgres knows of an alert comes first. The observer's memory is for the seconds before the worker
    evaluates the rules, and for the time without Postgres. An alert that must last is left out until then.
    """

    def __init__(self) -> None:
        self._moments: dict[_Level, float] = {}

    def dated(
        self, findings: Iterable[Finding], now: float, stored: Mapping[str, StoredAlert] = _NOTHING
    ) -> tuple[Finding, ...]:
        """Every finding with a beginning. Alerts that no longer fire are forgotten."""
        findings = tuple(findings)
        levels = [level for one in findings if one.since is None for level in _levels(one)]
        self._moments = {level: self._moments.get(level, now) for level in levels}
        return self.peek(findings, now, stored)

    def peek(
        self, findings: Iterable[Finding], now: float, stored: Mapping[str, StoredAlert] = _NOTHING
    ) -> tuple[Finding, ...]:
        """Like ``dated``, but it remembers nothing."""
        found = []
        for one in findings:
            known = stored.get(one.key)
            since = one.since
            if since is None:
                since = self._moments.get(_levels(one)[0], now)
                # A stored warning does not date an alert that has just become critical.
                if known is not None and (known.severity == "critical" or one.severity == "warning"):
                    since = min(since, known.level_since)
            if now - since >= one.lasting_s or (known is not None and known.fired):
                found.append(replace(one, since=since))
        return tuple(found)


#: The key of an alert, and whether it is the level of it that must last.
_Level = tuple[str, bool]


def _levels(finding: Finding) -> tuple[_Level, ...]:
    """The level that fires, and the one below it that has begun as well.

    A level that must last is harmless, however long it lasts: it does not date the level above it.
    """
    lasting = (finding.key, True)
    return (lasting,) if finding.lasting_s else ((finding.key, False), lasting)
