"""Edits of alert rules in one environment, and what a change would mean: now, and in the recorded past."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.people.content_version import content_version
from controlplane.alerts.people.rule_words import RULES_TO_MUTE
from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.rules.rule import Finding, Severity, rule_of
from controlplane.alerts.rules.settings import TIMING_FIELDS, RuleSettings, default_of, settings_of
from controlplane.alerts.state.evaluate import evaluate, firing_severities
from controlplane.alerts.state.history import HISTORY_H, times_fired
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.audit.record import record
from controlplane.errors import EditConflict, NotFound
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment
from controlplane.status.read_facts import read_facts
from controlplane.status.status import status_of
from controlplane.validation import Problems

LONGEST_FOR_S = 3_600
LONGEST_KEEP_S = 86_400
LONGEST_NOTE = 500
MIN_CLEAR_PERCENT = 10
#: Alerts of the past that are counted, in days.
PAST_DAYS = 30
#: Entries of the audit that are searched for the values that an edit was based on.
_MAX_ENTRIES = 50
_ACTION = "alert_rule.set"
_SEVERITIES: tuple[Severity, ...] = ("warning", "critical")


@dataclass(frozen=True, kw_only=True)
class RuleValues:
    """Values that a person enters. ``None`` stands for the default. Thresholds are in the rule's unit."""

    warning: float | None = None
    critical: float | None = None
    for_s: int | None = None
    keep_s: int | None = None
    #: A firing alert ends at this percentage of its thresholds.
    clear_percent: int | None = None
    level: int | None = None
    enabled: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RuleInForce:
    key: str
    #: The condition that it finds, in words.
    condition: str
    #: Its severities, the less severe first.
    severities: tuple[Severity, ...]
    settings: RuleSettings
    default: RuleSettings
    #: An edit names the version that it was based on. It differs after each change.
    version: int

    @property
    def changed(self) -> bool:
        return self.settings != self.default

    @property
    def fixed(self) -> bool:
        """Gateways apply it without Postgres: only its note can change."""
        return self.default.timing.level >= 3


@dataclass(frozen=True, kw_only=True)
class RulePreview:
    #: Alerts of the rule that are open.
    open: list[Alert]
    #: Findings that only these values would make now, and those that only the values in force make.
    begins: list[Finding]
    ends: list[Finding]
    #: How often its alerts fired in the last ``PAST_DAYS``, with the values of their time.
    fired: int
    #: How often one would have fired in the last ``HISTORY_H`` hours; ``None`` without stored figures.
    would_have_fired: int | None
    #: How often one would have fired then with the values in force.
    would_have_fired_as_set: int | None
    history_h: int = HISTORY_H


def rules_in_force(environment: str) -> list[RuleInForce]:
    """Every rule with its settings, by name. Raises ``NotFound`` for an unknown environment."""
    changes = environment_of(environment).alert_rules
    return [_in_force(key, changes) for key in RULES_TO_MUTE]


def set_rule(
    *,
    environment: str,
    rule: str,
    values: RuleValues,
    reason: str,
    actor: Actor,
    expected_version: int | None = None,
) -> RuleInForce:
    """Replace what differs from the defaults; without any difference, the rule follows its default again.

    The next evaluation judges open alerts by it. One that stays true stays the same alert: it is neither
    resolved nor sent again. Raises ``InvalidEdit``, ``NotFound``, and ``EditConflict`` if another person
    changed it since ``expected_version``. Without a version, it replaces what another person saved.
    """
    problems = Problems()
    problems.reason(reason)
    slug = environment_of(environment).slug
    changed = _checked(rule, values, problems)
    with transaction.atomic():
        row = Environment.objects.select_for_update().get(pk=slug)
        before = dict(row.alert_rules.get(rule, {}))
        if expected_version is not None and expected_version != content_version(before):
            raise _conflict(slug, rule, expected_version, before)
        kept = {key: value for key, value in row.alert_rules.items() if key != rule}
        row.alert_rules = kept | ({rule: changed} if changed else {})
        record(
            actor=actor,
            action=_ACTION,
            target_kind="alert_rule",
            target_name=rule,
            before=before,
            after=changed,
            reason=reason,
            environment=slug,
        )
        row.save(update_fields=["alert_rules"])
    return _in_force(rule, row.alert_rules)


def _conflict(environment: str, rule: str, expected: int, stored: Mapping[str, Any]) -> EditConflict:
    """Name what differs from the values that the edit was based on, if the audit has them."""
    entries = Entry.objects.filter(environment=environment, action=_ACTION, target_name=rule)
    newest = list(entries.order_by("-pk")[:_MAX_ENTRIES])
    known = [before for entry in newest for before in (entry.after, entry.before) if before is not None]
    read = next((one for one in known if content_version(one) == expected), None)
    threshold = default_of(rule).threshold
    now = {name: value * threshold.scale if name in _SEVERITIES else value for name, value in stored.items()}
    fields = stored if read is None else {*stored, *read}
    return EditConflict(
        expected_version=expected,
        current_version=content_version(stored),
        # ``None``: the default again.
        changed={
            name: now.get(name)
            for name in sorted(fields)
            if read is None or read.get(name) != stored.get(name)
        },
        by=newest[0].actor if newest else "",
        at=newest[0].at if newest else None,
    )


def preview_rule(*, environment: str, rule: str, values: RuleValues) -> RulePreview:
    """The effects that a change would have. Raises ``InvalidEdit`` and ``NotFound``."""
    slug = environment_of(environment).slug
    changed = _checked(rule, values, Problems())
    facts = read_facts(slug)
    changes = {**facts.alert_rules, rule: changed}
    rules = (RULE_OF_KEY[rule],)
    own = Alert.objects.filter(environment=slug)
    rows = list(own.exclude(state=AlertState.RESOLVED).without_chart().order_by("true_since"))
    firing = firing_severities(rows)
    changed_facts = replace(facts, alert_rules=changes)
    now = {one.key: one for one in evaluate(status_of(facts), rules, firing)}
    then = {one.key: one for one in evaluate(status_of(changed_facts), rules, firing)}
    since = timezone.now() - timedelta(days=PAST_DAYS)
    past = own.filter(fired_at__gte=since).only("key")
    return RulePreview(
        open=[row for row in rows if rule_of(row.key) == rule],
        begins=[then[key] for key in sorted(then.keys() - now.keys())],
        ends=[now[key] for key in sorted(now.keys() - then.keys())],
        fired=sum(rule_of(row.key) == rule for row in past.iterator()),
        would_have_fired=times_fired(slug, rule, settings_of(changes, rule), facts.store_deadline_us),
        would_have_fired_as_set=times_fired(
            slug, rule, settings_of(facts.alert_rules, rule), facts.store_deadline_us
        ),
    )


def _in_force(key: str, changes: Mapping[str, Any]) -> RuleInForce:
    rule = RULE_OF_KEY[key]
    return RuleInForce(
        key=key,
        condition=rule.describes,
        severities=tuple(sorted(rule.severities, key=_SEVERITIES.index)),
        settings=settings_of(changes, key),
        default=default_of(key),
        version=content_version(changes.get(key, {})),
    )


def _checked(rule: str, values: RuleValues, problems: Problems) -> dict[str, Any]:
    """The differences from the defaults. Raises ``InvalidEdit`` and ``NotFound``."""
    if rule not in RULES_TO_MUTE:
        raise NotFound("alert rule", rule)
    default = default_of(rule)
    problems.text("note", values.note, LONGEST_NOTE, lines=True)
    numbers = (("for_s", values.for_s, LONGEST_FOR_S), ("keep_s", values.keep_s, LONGEST_KEEP_S))
    for name, number, most in numbers:
        if number is not None:
            problems.whole(name, number, 0, most)
    if values.level is not None and values.level not in (1, 2) and values.level != default.timing.level:
        problems.add("level", "Choose level 1 or 2. Rules of level 3 are applied by gateways as well.")
    changed: dict[str, Any] = {"enabled": False} if not values.enabled else {}
    for name, field in TIMING_FIELDS.items():
        chosen = getattr(values, name)
        if chosen is not None and chosen != getattr(default.timing, field):
            changed[name] = chosen
    changed |= _checked_thresholds(default, values, problems)
    if default.timing.level >= 3 and changed:
        problems.add(
            next(iter(changed)),
            "Gateways apply this rule without Postgres, with its defaults: only its note can change.",
        )
    if values.note.strip():
        changed["note"] = values.note.strip()
    problems.settle()
    return changed


def _checked_thresholds(default: RuleSettings, values: RuleValues, problems: Problems) -> dict[str, Any]:
    threshold = default.threshold
    changed: dict[str, Any] = {}
    for severity in _SEVERITIES:
        typed: float | None = getattr(values, severity)
        if typed is None:
            continue
        usual = threshold.of(severity)
        if usual is None:
            problems.add(severity, "This rule has no such threshold. Leave it empty.")
            continue
        limit = typed / threshold.scale
        # Written so that a number that is not one is refused too.
        if not threshold.least <= limit <= threshold.most or (threshold.whole and limit % 1):
            kind = "a whole number" if threshold.whole else "a number"
            least, most = threshold.least * threshold.scale, threshold.most * threshold.scale
            problems.add(severity, f"Enter {kind} from {least:,.10g} to {most:,.10g} {threshold.unit}.")
        elif limit != usual:
            changed[severity] = limit
    if values.clear_percent is not None:
        problems.whole("clear_percent", values.clear_percent, MIN_CLEAR_PERCENT, 100)
        if values.clear_percent != threshold.clear_percent:
            changed["clear_percent"] = values.clear_percent
            if not threshold.clears:
                problems.add("clear_percent", "An alert of this rule ends at its threshold. Leave it empty.")
    settled = replace(threshold, **changed)
    if settled.warning is not None and settled.critical is not None:
        worse = settled.warning < settled.critical
        if worse if settled.compare == "less than" else settled.critical < settled.warning:
            problems.add("critical", "Critical must be worse than a warning: swap the two thresholds.")
    return changed
