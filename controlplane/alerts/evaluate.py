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
        self._moments: dict[str, float] = {}

    def dated(self, findings: Iterable[Finding], now: float) -> tuple[Finding, ...]:
        """Every finding with a beginning. Alerts that no longer fire are forgotten."""
        findings = tuple(findings)
        self._moments = {one.key: self._moments.get(one.key, now) for one in findings if one.since is None}
        return self.peek(findings, now)

    def peek(self, findings: Iterable[Finding], now: float) -> tuple[Finding, ...]:
        """The same without remembering anything."""
        dated = (
            (one, one.since if one.since is not None else self._moments.get(one.key, now)) for one in findings
        )
        return tuple(replace(one, since=since) for one, since in dated if now - since >= one.lasting_s)
