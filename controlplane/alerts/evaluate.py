"""Rules applied to a status: a pure function, for the worker, the API and pages alike."""

from collections.abc import Iterable
from typing import Any

from controlplane.alerts.findings import Finding, Rule
from controlplane.alerts.rules import RULES
from controlplane.status.status import Status


def evaluate(status: Status, rules: Iterable[Rule[Any]] = RULES) -> list[Finding]:
    """The alerts that fire now, critical first, otherwise in the order of the rules."""
    found: dict[str, Finding] = {}
    for rule in rules:
        fired = [rule.finding(one) for one in rule.scope.each(status) if rule.test(one)]
        for finding in sorted(fired, key=lambda finding: finding.key):
            # A key that is taken was found at a higher severity.
            found.setdefault(finding.key, finding)
    return sorted(found.values(), key=lambda finding: finding.severity != "critical")
