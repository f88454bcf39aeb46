"""The settings of a rule that an admin can change in one environment, and their defaults.

A release may improve a default, so Postgres keeps only differences: ``Environment.alert_rules`` is a document
of rule -> field -> value. A status has it, so that the worker, pages and the API judge alike. Prometheus has
the defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.alerts.rules.every import RULE_OF_KEY, timing_of
from controlplane.alerts.rules.rule import SEVERITIES, Rule, Severity, Threshold, Timing, rule_of

#: Rule -> name of a setting, as it is stored -> field of its timing.
TIMING_FIELDS = {"level": "level", "for_s": "fires_after_s", "keep_s": "resolves_after_s"}
#: Rule -> field -> value.
Changes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """The settings in force for a rule in an environment."""

    timing: Timing
    threshold: Threshold
    enabled: bool = True
    #: A note of the admin, beside the rule.
    note: str = ""

    def severity(self, rule: Rule[Any], of: Any, firing: Severity | None = None) -> Severity | None:
        """How severe the rule finds one thing, ``None`` if it is not true of it.

        ``firing``: the severity of its alert, if that fires.
        """
        if not self.enabled or not rule.test(of):
            return None
        if rule.value is None:
            mild = rule.is_critical is not None and not rule.is_critical(of)
            return rule.severities[-1 if mild else 0]
        threshold = rule.own_threshold(of, self.threshold)
        return replace(self, threshold=threshold).passed(rule.value(of), firing)

    def passed(self, figure: float, firing: Severity | None = None) -> Severity | None:
        """The worst severity whose threshold a figure has passed."""
        passed = self.threshold.passed
        return next((one for one in SEVERITIES if passed(one, figure, firing=holds(firing, one))), None)

    def words_of(self, rule: Rule[Any], of: Any, severity: Severity) -> str:
        """The thresholds in words, if the rule names them.

        Of an alert that fires on below its threshold, also where it ends: the figure in its text would
        contradict its severity.
        """
        if rule.value is None:
            return ""
        threshold = rule.own_threshold(of, self.threshold)
        if threshold.passed(severity, rule.value(of)):
            return threshold.words if rule.names_thresholds else ""
        return f"{threshold.words} {threshold.clear_words}"


def holds(firing: Severity | None, severity: Severity) -> bool:
    """Whether an alert that fires is at this severity, or at a worse one."""
    return firing == severity or firing == "critical"


def default_of(key: str) -> RuleSettings:
    rule = RULE_OF_KEY.get(rule_of(key))
    return RuleSettings(timing=timing_of(key), threshold=rule.threshold if rule is not None else Threshold())


def settings_of(changes: Changes, key: str) -> RuleSettings:
    """The settings of an alert by its key: ``open:payments-api`` has those of ``open``."""
    rule = rule_of(key)
    changed = changes.get(rule)
    default = default_of(rule)
    if not changed:
        return default
    timing = {field: changed[name] for name, field in TIMING_FIELDS.items() if name in changed}
    limits = {name: changed[name] for name in ("warning", "critical", "clear_percent") if name in changed}
    return RuleSettings(
        timing=replace(default.timing, **timing),
        threshold=replace(default.threshold, **limits),
        enabled=changed.get("enabled", True),
        note=changed.get("note", ""),
    )
