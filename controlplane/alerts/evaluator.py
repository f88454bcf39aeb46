"""Applies the rules to the fleet and keeps their alerts in Postgres. The worker runs it every 5 s."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog
from django.db import connection, transaction
from django.db.models.functions import Now

from controlplane.alerts.incidents.follow import follow, retitle
from controlplane.alerts.lifecycle import LONGEST_PAUSE_S, AlertEvent, AlertProgress, AlertState, advance
from controlplane.alerts.models import EVALUATION_LOCK, Alert, Evaluation
from controlplane.alerts.notify import escalate, notify
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.rule import OF_TENANT, Finding, rule_of
from controlplane.alerts.rules.settings import settings_of
from controlplane.alerts.state import lag_repair
from controlplane.alerts.state.evaluate import evaluate, firing_severities, idle_keys, is_blind
from controlplane.alerts.state.flapping import timing_while, with_change
from controlplane.alerts.state.measured_points import drawn_first, figures_of, with_point, with_turn
from controlplane.alerts.state.progress import fields_after, progress_of
from controlplane.metric_catalogue import alerts as catalogue
from controlplane.policies.models import Environment
from controlplane.postgres import transaction_lock
from controlplane.status.measured import measured
from controlplane.status.read_facts import read_facts
from controlplane.status.read_watched import MAX_SPENT, knows, read_first
from controlplane.status.status import Status, status_of

#: Rules whose findings are news to people.
_ALERTS = tuple(rule for rule in RULES if rule.alerts)
_REFRESH_PODS = frozenset(rule.key for rule in RULES if rule.refreshes_pods)

log = structlog.get_logger(__name__)

NEWS = catalogue.NEWS.make()

#: Resolved alerts are kept for this time, and at most so many of an environment.
KEPT_DAYS = 90
MAX_KEPT = 20_000

_NOW = "SELECT extract(epoch FROM now())::float8"
_FORGET_MUTES = """
    DELETE FROM alerts_mute
    WHERE COALESCE(ended_at, CASE WHEN weekly THEN NULL ELSE ends_at END) < now() - make_interval(days => %s)
"""
#: Deliveries are kept for this time.
DELIVERIES_KEPT_DAYS = 30
_FORGET_DELIVERIES = "DELETE FROM alerts_delivery WHERE created_at < now() - make_interval(days => %s)"
_FORGET = """
    WITH old AS (
        SELECT id FROM (
            SELECT id, resolved_at,
                   row_number() OVER (PARTITION BY environment ORDER BY resolved_at DESC) AS place
            FROM alerts_alert WHERE state = 'resolved'
        ) AS resolved
        WHERE resolved_at < now() - make_interval(days => %s) OR place > %s
    ), explained AS (
        UPDATE alerts_alert SET cause_id = NULL
        WHERE cause_id IN (SELECT id FROM old) AND id NOT IN (SELECT id FROM old)
    ), sent AS (
        DELETE FROM alerts_delivery WHERE alert_id IN (SELECT id FROM old)
    )
    DELETE FROM alerts_alert WHERE id IN (SELECT id FROM old)
"""
_NOT_ACKNOWLEDGED = MappingProxyType({"acknowledged_by": "", "acknowledged_at": None, "note": ""})


@dataclass(frozen=True, kw_only=True)
class Change:
    """News of one alert."""

    alert: Alert
    news: AlertEvent


def evaluate_all() -> list[Change]:
    """Evaluate every environment. One that another process evaluates at this moment is left out.

    An environment that fails keeps none of the others from its alerts: the errors are raised at the end.
    """
    changes: list[Change] = []
    errors: list[Exception] = []
    for environment in list(Environment.objects.order_by("slug").values_list("slug", flat=True)):
        try:
            changes += evaluate_environment(environment)
        except Exception as error:
            log.exception("alerts.not_evaluated", environment=environment)
            errors.append(error)
    if errors:
        raise ExceptionGroup("the alerts of some environments were not evaluated", errors)
    return changes


def evaluate_environment(environment: str) -> list[Change]:
    """Evaluate the rules once, in one transaction, and write what changed."""
    with transaction.atomic():
        if not transaction_lock(EVALUATION_LOCK, environment, wait=False):
            return []
        with connection.cursor() as cursor:
            # The clock of Postgres, for every process that evaluates.
            cursor.execute(_NOW)
            (now,) = cursor.fetchone()
        if not knows(environment):
            spent = Alert.objects.filter(environment=environment, key__startswith="quota:")
            open_ones = spent.exclude(state=AlertState.RESOLVED)
            read_first(environment, open_ones.values_list("subject_name", flat=True)[:MAX_SPENT])
        status = status_of(read_facts(environment))
        changes = _apply(environment, status, now)
    for change in changes:
        alert = change.alert
        NEWS.labels(rule_of(alert.key), change.news).inc()
        # Without the detail, and without the name of a tenant, whom no erasure finds in a log.
        of_tenant = alert.subject_kind in OF_TENANT
        log.warning(
            f"alert.{change.news}",
            environment=environment,
            key=rule_of(alert.key) if of_tenant else alert.key,
            alert_level=alert.level,
            severity=alert.severity,
            text="" if of_tenant else alert.text,
            since=alert.true_since.isoformat(),
        )
    # Last: an error of it keeps no news from the log and the metric.
    if status.fleet.lagging:
        done = Evaluation.objects.get(environment=environment).measured.get(lag_repair.FIELD)
        if lag_repair.is_due(done, now):
            lag_repair.send_again(environment, done, now)
    return changes


def forget() -> int:
    """Delete old deliveries and mutes, and alerts that are too old or too many. Returns how many alerts."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_DELIVERIES, [DELIVERIES_KEPT_DAYS])
        cursor.execute(_FORGET_MUTES, [KEPT_DAYS])
        cursor.execute(_FORGET, [KEPT_DAYS, MAX_KEPT])
        return int(cursor.rowcount)


def _apply(environment: str, status: Status, now: float) -> list[Change]:
    last = Evaluation.objects.filter(environment=environment).first()
    passed_s = max(0.0, now - last.at.timestamp()) if last else 0.0
    document, done = measured(status), None
    if status.fleet.lagging and last is not None and lag_repair.FIELD in last.measured:
        done = document[lag_repair.FIELD] = last.measured[lag_repair.FIELD]
    rows = _open_alerts(environment)
    found = _findings(status, rows, lag_repair.done_about(done))
    idle = idle_keys(status)
    changes = []
    seen = []
    for key in sorted(found.keys() | rows.keys()):
        row, finding = rows.get(key), found.get(key)
        hidden = is_blind(status, key)
        known = progress_of(row) if row is not None else None
        settings = settings_of(status.facts.alert_rules, key)
        timing = timing_while(row, settings.timing)
        after, news = advance(known, finding, timing, now, blind=hidden, idle=key in idle, passed_s=passed_s)
        if after is None:
            if row is not None:
                row.delete()
            continue
        if row is None:
            row = Alert(environment=environment, key=key)
        if (
            _write(row, after, finding if not hidden else None, timing.level, now, hidden=hidden)
            and news is not None
        ):
            changes.append(Change(alert=row, news=news))
        seen.append(row)
    _measure(status, [row for row in seen if row.key not in idle], now)
    paused = {"paused_at": last.at, "resumed_at": Now()} if last and passed_s > LONGEST_PAUSE_S else {}
    # Before news: after a pause, those of level 3 wait for what gateways sent meanwhile.
    Evaluation.objects.update_or_create(
        environment=environment, defaults={"at": Now(), "measured": document, **paused}
    )
    notify(environment, seen, now)
    escalate(environment, seen, now)
    follow(environment, seen, now, passed_s)
    return changes


def _measure(status: Status, rows: list[Alert], now: float) -> None:
    """Keep the figure of each open alert. Where none or too little was measured, it is no 0."""
    known = drawn_first(row for row in rows if row.blind_since is None and row.idle_since is None)
    figures = figures_of(status, {row.key for row in known})
    due = []
    for row in known:
        value = figures.get(row.key)
        points = None if value is None else with_point(row.points, now, value)
        if points is not None:
            row.points = points
            due.append(row)
    Alert.objects.bulk_update(due, ["points"])


def _findings(status: Status, rows: Mapping[str, Alert], refreshed: str) -> dict[str, Finding]:
    found = {one.key: one for one in evaluate(status, _ALERTS, firing_severities(rows.values()))}
    for key in found.keys() & _REFRESH_PODS:
        found[key] = replace(found[key], detail=found[key].detail + refreshed)
    return found


def _open_alerts(environment: str) -> dict[str, Alert]:
    rows = Alert.objects.filter(environment=environment).exclude(state=AlertState.RESOLVED)
    by_id: dict[int | None, Alert] = {
        row.pk: row
        for row in rows.select_related("incident", "cause__incident").defer("cause__points", "cause__turns")
    }
    for one in by_id.values():
        if one.cause_id in by_id:
            # The instance that this evaluation may resolve, not a copy of how it was.
            one.cause = by_id[one.cause_id]
    return {row.key: row for row in by_id.values()}


def _write(
    row: Alert, after: AlertProgress, finding: Finding | None, level: int, now: float, *, hidden: bool
) -> bool:
    """Write an alert if anything about it changed. Returns whether it did."""
    fields = fields_after(row, after, finding, level, now, hidden=hidden)
    worsened = after.severity == "critical" and row.severity == "warning"
    if worsened:
        # A person who took a warning does not yet know that it is critical.
        fields |= _NOT_ACKNOWLEDGED
    if after.severity == "warning" and row.notified == "critical" and row.flapping_since is None:
        # It is news again when it becomes critical again, unless it flaps.
        fields["notified"] = "warning"
    if row.flapping_since is not None and (after.state.value, after.severity) != (row.state, row.severity):
        fields["changes"] = with_change(row, now)
    if after.state.value != row.state:
        fields["turns"] = with_turn(row.turns, now if row.pk else after.true_since, after.state.value)
    changed = [
        name
        for name, value in fields.items()
        # Written in any case: a person may have taken the warning since this evaluation read it.
        if getattr(row, name) != value or (worsened and name in _NOT_ACKNOWLEDGED)
    ]
    before = row.worst_text
    for name in changed:
        setattr(row, name, fields[name])
    if row.pk is None:
        row.save(force_insert=True)
    elif changed:
        row.save(update_fields=changed)
        retitle(row, before)
    return bool(changed)
