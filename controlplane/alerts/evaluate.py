"""Rules applied to a status: which alerts fire now, and since when. For the worker, the API and pages."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from controlplane.alerts.findings import Finding, Rule
from controlplane.alerts.rules import RULES
from controlplane.status.status import Status


def evaluate(status: Status, rules: Iterable[Rule[Any]] = RULES) -> list[Finding]:
    """A pure function: the alerts that fire now, critical first, otherwise in the order of the rules."""
    found: dict[str, Finding] = {}
    for rule in rules:
        fired = [rule.finding(one) for one in rule.scope.each(status) if rule.test(one)]
        for finding in sorted(fired, key=lambda finding: finding.key):
            # A key that is taken was found at a higher severity.
            found.setdefault(finding.key, finding)
    return sorted(found.values(), key=lambda finding: finding.severity != "critical")


class FirstSeen:
    """Remembers, for one observer, when it first saw an alert whose beginning the status does not show.

    An alert that must last is left out until then.
    """

    def __init__(self) -> None:
        self._moments: dict[_Level, float] = {}

    def dated(self, findings: Iterable[Finding], now: float) -> tuple[Finding, ...]:
        """Every finding with a beginning. Alerts that no longer fire are forgotten."""
        findings = tuple(findings)
        levels = [level for one in findings if one.since is None for level in _levels(one)]
        self._moments = {level: self._moments.get(level, now) for level in levels}
        return self.peek(findings, now)

    def peek(self, findings: Iterable[Finding], now: float) -> tuple[Finding, ...]:
        """The same without remembering anything."""
        dated = (
            (one, one.since if one.since is not None else self._moments.get(_levels(one)[0], now))
            for one in findings
        )
        return tuple(replace(one, since=since) for one, since in dated if now - since >= one.lasting_s)


#: The key of an alert, and whether it is the level of it that must last.
_Level = tuple[str, bool]


def _levels(finding: Finding) -> tuple[_Level, ...]:
    """The level that fires, and the one below it that has begun as well.

    A level that must last is harmless, however long it lasts: it does not date the level above it.
    """
    lasting = (finding.key, True)
    return (lasting,) if finding.lasting_s else ((finding.key, False), lasting)
