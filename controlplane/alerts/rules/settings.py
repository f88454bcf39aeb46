"""What an admin can change of a rule in one environment, and its defaults.

A release may improve a default, so Postgres keeps only differences: ``Environment.alert_rules`` is a document
of rule -> field -> value. A status has it, so that the worker, pages and the API judge alike. Prometheus has
the defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from controlplane.alerts.rules import thresholds
from controlplane.alerts.rules.rule import Rule, Severity
from controlplane.alerts.rules.timings import Timing, rule_of, timing_of
from controlplane.status.servers import UNHEALTHY_AT

Compare = Literal["more than", "at least", "less than"]
#: Rule -> field -> value.
Changes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Beyond which figure a rule is true. ``None`` for a severity that the rule does not have."""

    warning: float | None = None
    critical: float | None = None
    #: As people read it: the figure is multiplied by ``scale`` for that.
    unit: str = "%"
    scale: float = 100.0
    compare: Compare = "more than"
    #: The lowest and the highest value that a person can choose, before it is multiplied.
    least: float = 0.0
    most: float = 1.0
    whole: bool = False
    #: An alert that fires ends at this percentage of its threshold. 100 for a figure that does not jump.
    clear_percent: int = 100

    def of(self, severity: Severity) -> float | None:
        return self.critical if severity == "critical" else self.warning

    @property
    def clears(self) -> bool:
        """Whether ``clear_percent`` can be chosen: a number of pods or of days has nothing in between."""
        return bool(self.words) and not self.whole and self.compare != "less than"

    def passed(self, severity: Severity, figure: float, *, firing: bool = False) -> bool:
        """Whether the figure is beyond the threshold; of an alert that fires, beyond what ends it."""
        limit = self.of(severity)
        if limit is None:
            return False
        if firing:
            limit *= self.clear_percent / 100
            if severity == "critical" and self.warning is not None and self.compare != "less than":
                # With near thresholds: below the warning, nothing is critical.
                limit = max(limit, self.warning)
        if self.compare == "less than":
            return figure < limit
        return figure >= limit if self.compare == "at least" else figure > limit

    def shown(self, severity: Severity) -> str:
        """``0.5 %``; empty for none."""
        limit = self.of(severity)
        return "" if limit is None else f"{limit * self.scale:.10g} {self.unit}".strip()

    @property
    def words(self) -> str:
        """``More than 0.5 % is a warning, more than 2 % is critical.``"""
        levels: tuple[tuple[Severity, str], ...] = (("warning", "a warning"), ("critical", "critical"))
        parts = [f"{self.compare} {self.shown(of)} is {word}" for of, word in levels if self.shown(of)]
        text = ", ".join(parts)
        return f"{text[:1].upper()}{text[1:]}." if text else ""

    @property
    def clear_words(self) -> str:
        """``Ends at 90 % of that.`` Empty if it ends at its threshold."""
        return f"Ends at {self.clear_percent} % of that." if self.clear_percent != 100 else ""


def _jumping(**fields: Any) -> Threshold:
    return Threshold(**{"clear_percent": thresholds.CLEAR_PERCENT, **fields})


def _seconds(**fields: Any) -> Threshold:
    return Threshold(unit="s", scale=1.0, **{"most": 3_600.0, **fields})


def _days(**fields: Any) -> Threshold:
    return Threshold(unit="days", scale=1.0, compare="less than", **{"least": 1.0, "most": 365.0, **fields})


#: Rules that compare a figure. The others are about a state: it is there or not.
THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "429": _jumping(warning=thresholds.REFUSED_SHARE, critical=thresholds.REFUSED_SHARE_CRITICAL),
        "all-refused": _jumping(critical=thresholds.ALL_REFUSED_SHARE),
        "audit-export": _seconds(
            warning=thresholds.AUDIT_EXPORT_S,
            critical=thresholds.AUDIT_EXPORT_CRITICAL_S,
            least=60.0,
            most=86_400.0,
        ),
        "backlog-dead": Threshold(warning=0, unit="jobs", scale=1.0, most=1_000, whole=True),
        "backlog-full": _jumping(
            warning=thresholds.BACKLOG_SHARE, critical=thresholds.BACKLOG_SHARE_CRITICAL
        ),
        "backlog-untaken": _seconds(warning=thresholds.BACKLOG_UNTAKEN_S, least=10.0),
        "bulkhead-queue": _jumping(warning=thresholds.QUEUE_SHARE),
        "certificate": _days(warning=thresholds.EXPIRY_DAYS, critical=thresholds.EXPIRY_CRITICAL_DAYS),
        "check-errors": _jumping(
            warning=thresholds.FAILED_CHECKS_SHARE, critical=thresholds.FAILED_CHECKS_SHARE_CRITICAL
        ),
        "check-failures": _jumping(critical=thresholds.FAILED_CHECKS_MANY),
        # Below two heartbeats, a lag says nothing.
        "lag": _seconds(warning=thresholds.LAG_S, critical=thresholds.LAG_S_CRITICAL, least=thresholds.LAG_S),
        "local": Threshold(
            warning=0, critical=thresholds.LOCAL_PODS, unit="pods", scale=1.0, most=100_000, whole=True
        ),
        "lock-failures": _jumping(
            warning=thresholds.LOCK_FAILURES_SHARE, critical=thresholds.LOCK_FAILURES_SHARE_CRITICAL
        ),
        "lock-held": _seconds(warning=thresholds.LOCK_HELD_S, least=10.0, most=86_400.0),
        "lock-lost": Threshold(warning=0, unit="locks", scale=1.0, most=1_000_000, whole=True),
        "open-share": _jumping(warning=thresholds.OPEN_SHARE, critical=thresholds.OPEN_SHARE_CRITICAL),
        "outbox": _seconds(warning=thresholds.OUTBOX_S, critical=thresholds.OUTBOX_CRITICAL_S, least=5.0),
        "overdue": _seconds(critical=thresholds.OVERDUE_S, least=10.0),
        "p99": _jumping(warning=thresholds.P99_WARN_PART, critical=1.0, unit="% of the deadline", most=20.0),
        "pressure": _jumping(warning=0.0, critical=thresholds.PRESSED_SHARE),
        "quota": Threshold(
            warning=thresholds.QUOTA_SHARE,
            critical=thresholds.QUOTA_SHARE_CRITICAL,
            compare="at least",
            least=0.01,
            most=10.0,
        ),
        "redis-nodes": Threshold(
            critical=thresholds.REDIS_NODES, unit="servers", scale=1.0, most=200, whole=True
        ),
        # Its two thresholds are near each other.
        "redis-ops": Threshold(
            clear_percent=95, warning=thresholds.REDIS_OPS_SHARE, critical=thresholds.REDIS_OPS_SHARE_CRITICAL
        ),
        "refused-caller": _jumping(
            warning=thresholds.CALLER_REFUSALS,
            unit="refusals in 10 minutes",
            scale=1.0,
            least=10.0,
            most=1_000_000.0,
        ),
        "runaway-tenant": _jumping(
            warning=thresholds.RUNAWAY_TIMES, unit="times its usual hour", scale=1.0, least=2.0, most=10_000.0
        ),
        "shed": _jumping(warning=thresholds.SHED_SHARE, critical=thresholds.SHED_SHARE_CRITICAL),
        "token": _days(warning=thresholds.EXPIRY_DAYS, critical=thresholds.EXPIRY_CRITICAL_DAYS),
        "uncounted": _jumping(warning=thresholds.UNCOUNTED_SHARE),
        "unhealthy": _jumping(
            warning=UNHEALTHY_AT, unit="% of the most of a healthy pod", least=0.1, most=100.0
        ),
        "vendor-429": _jumping(warning=thresholds.VENDOR_SHARE, critical=thresholds.VENDOR_SHARE_CRITICAL),
        "vendor-auth": _jumping(warning=thresholds.VENDOR_SHARE, critical=thresholds.VENDOR_SHARE_CRITICAL),
    }
)
_NONE = Threshold()


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """What is in force for a rule in an environment."""

    timing: Timing
    threshold: Threshold = _NONE
    enabled: bool = True
    #: Of the admin, beside the rule.
    note: str = ""

    def fires(self, rule: Rule[Any], of: Any, firing: Severity | None = None) -> bool:
        """Whether the rule is true of one thing. ``firing``: the severity of its alert, if that fires."""
        if not self.enabled or not rule.test(of):
            return False
        if rule.value is None:
            return True
        return self.threshold.passed(rule.severity, rule.value(of), firing=holds(firing, rule.severity))

    def words_of(self, rule: Rule[Any], of: Any) -> str:
        """The thresholds in words. Of an alert that fires on below its threshold, also where it ends."""
        if rule.value is None:
            return ""
        passed = self.threshold.passed(rule.severity, rule.value(of))
        return self.threshold.words if passed else f"{self.threshold.words} {self.threshold.clear_words}"


def holds(firing: Severity | None, severity: Severity) -> bool:
    """Whether an alert that fires is at this severity, or at a worse one."""
    return firing == severity or firing == "critical"


def default_of(rule: str) -> RuleSettings:
    return RuleSettings(timing=timing_of(rule), threshold=THRESHOLDS.get(rule, _NONE))


def settings_of(changes: Changes, key: str) -> RuleSettings:
    """The settings of an alert by its key: ``open:payments-api`` has those of ``open``."""
    rule = rule_of(key)
    changed = changes.get(rule)
    default = default_of(rule)
    if not changed:
        return default
    timing = {name: changed[name] for name in ("level", "for_s", "keep_s") if name in changed}
    limits = {name: changed[name] for name in ("warning", "critical", "clear_percent") if name in changed}
    return RuleSettings(
        timing=replace(default.timing, **timing),
        threshold=replace(default.threshold, **limits),
        enabled=changed.get("enabled", True),
        note=changed.get("note", ""),
    )
