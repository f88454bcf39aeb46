"""Edits of people in incidents: notes, steps of runbooks, merging, splitting and closing.

Everything that moves alerts takes the lock of the evaluation, so that neither sees the other half done.
"""

from datetime import datetime

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.alerts.incidents.follow import figures_of, take_figures
from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import EVALUATION_LOCK, Alert, Incident, IncidentLine
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import InvalidEdit, find
from controlplane.postgres import transaction_lock
from controlplane.validation import Problems, check_reason, is_printable
from fuseboard.contract.words import is_slug

#: Notes and steps of one incident.
MAX_LINES = 1_000
LONGEST_NOTE = 2_000
MAX_STEP = 999


def add_note(*, environment: str, number: int, text: str, actor: Actor) -> IncidentLine:
    """Write a note into the timeline, also of a closed incident. Raises ``InvalidEdit``, ``NotFound``."""
    problems = Problems()
    text = _checked(problems, "note", text.strip())
    problems.settle()
    with transaction.atomic():
        incident = locked_incident(environment, number)
        line = _add(incident, actor, text=text)
        record_incident(incident, "incident.noted", actor, reason=text[:500])
    return line


def tick_step(
    *, environment: str, number: int, runbook: str, step: int, text: str, done: bool, actor: Actor
) -> IncidentLine:
    """Note that a step of a runbook was done, or was not done after all. Sent twice, it is noted once."""
    problems = Problems()
    text = _checked(problems, "text", text.strip())
    problems.whole("step", step, 1, MAX_STEP)
    if not is_slug(runbook) or len(runbook) > 100:
        problems.add("runbook", "Use the name of a runbook, as in its address.")
    problems.settle()
    with transaction.atomic():
        incident = locked_incident(environment, number)
        # With its words: an edit of the runbook can give the number to another step.
        steps = IncidentLine.objects.filter(incident=incident, runbook=runbook, text=text)
        last = steps.order_by("-id").first()
        if last is not None and last.done == done:
            return last
        if last is None and not done:
            raise InvalidEdit({"done": ["This step is not ticked."]})
        line = _add(incident, actor, text=text, runbook=runbook, step=step, done=done)
        action = "incident.step_done" if done else "incident.step_undone"
        record_incident(incident, action, actor, reason=f"{runbook} {step}: {text}"[:500])
    return line


def steps_done(incident: Incident, runbook: str) -> dict[str, IncidentLine]:
    """Words of a step -> who did it and when, for the steps that are done."""
    rows = IncidentLine.objects.filter(incident=incident, runbook=runbook).order_by("id")
    newest = {row.text: row for row in rows}
    return {text: row for text, row in newest.items() if row.done}


def merge_incident(*, environment: str, number: int, into: int, reason: str, actor: Actor) -> Incident:
    """Move the alerts and the lines of an incident to another one, and close it. Returns the other one."""
    problems = Problems()
    problems.reason(reason)
    if number == into:
        problems.add("into", "Choose another incident.")
    problems.settle()
    with transaction.atomic():
        transaction_lock(EVALUATION_LOCK, environment)
        source, target = locked_incident(environment, number), locked_incident(environment, into)
        for one, field in ((source, "incident"), (target, "into")):
            if one.merged_into_id is not None:
                problems.add(field, f"Incident {one.pk} was merged into {one.merged_into_id}.")
        if source.closed_at is None and target.closed_at is not None:
            problems.add("into", f"Incident {into} is closed. Merge it into {number} instead.")
        problems.settle()
        if target.lines.count() + source.lines.count() > MAX_LINES:
            raise _full()
        Alert.objects.filter(incident=source).update(incident=target)
        IncidentLine.objects.filter(incident=source).update(incident=target)
        source.closed_at = source.closed_at or timezone.now()
        source.closed_by, source.merged_into = actor.name[:200], target
        source.save(update_fields=["closed_at", "closed_by", "merged_into"])
        _take(target)
        record_incident(source, "incident.merged", actor, reason=reason, after={"into": target.pk})
    return target


def split_alert(*, environment: str, number: int, alert: int, reason: str, actor: Actor) -> Incident:
    """Move an alert, with all of its episodes in this incident, into a new incident."""
    check_reason(reason)
    with transaction.atomic():
        transaction_lock(EVALUATION_LOCK, environment)
        source = locked_incident(environment, number)
        row = find(Alert.objects.filter(incident=source), "alert of this incident", pk=alert)
        left = Alert.objects.filter(incident=source).exclude(key=row.key).order_by("true_since", "pk")
        keys = list(dict.fromkeys(left.values_list("key", flat=True)))
        if not keys:
            raise InvalidEdit({"alert": ["The incident has no other alert. Close it instead."]})
        source.cause = _free_cause(source, keys) if source.cause == row.key else source.cause
        if source.closed_at is None:
            _check_free(environment, row.key, source)
        source.save(update_fields=["cause"])
        moved = Alert.objects.filter(incident=source, key=row.key)
        target = Incident.objects.create(
            environment=environment,
            cause=row.key,
            title=row.worst_text or row.text,
            level=row.level,
            severity=row.worst,
            started_at=row.true_since,
            opened_at=timezone.now(),
            quiet_since=_quiet(list(moved)),
            closed_at=source.closed_at,
            closed_by=source.closed_by,
            divisor=source.divisor,
        )
        moved.update(incident=target)
        _take(source)
        _take(target)
        record_incident(
            source, "incident.split", actor, reason=reason, after={"into": target.pk, "alert": row.key}
        )
    return target


def close_incident(*, environment: str, number: int, reason: str, actor: Actor) -> Incident:
    """Close it, also while alerts fire: they then open no other one before they are resolved."""
    check_reason(reason)
    with transaction.atomic():
        transaction_lock(EVALUATION_LOCK, environment)
        incident = locked_incident(environment, number)
        if incident.closed_at is not None:
            raise InvalidEdit({"incident": ["This incident is closed already."]})
        incident.closed_at, incident.closed_by = timezone.now(), actor.name[:200]
        incident.save(update_fields=["closed_at", "closed_by"])
        record_incident(incident, "incident.closed", actor, reason=reason)
    return incident


def locked_incident(environment: str, number: int) -> Incident:
    """Locked until the transaction ends. Raises ``NotFound``."""
    return find(Incident.objects.select_for_update().filter(environment=environment), "incident", pk=number)


def _checked(problems: Problems, field: str, text: str) -> str:
    if not 1 <= len(text) <= LONGEST_NOTE or not is_printable(text, lines=True):
        problems.add(field, f"Enter 1 to {LONGEST_NOTE:,} characters without control characters.")
    return text


def _add(incident: Incident, actor: Actor, **fields: object) -> IncidentLine:
    if incident.lines.count() >= MAX_LINES:
        raise _full()
    row = IncidentLine.objects.create(incident=incident, by=actor.name[:200], at=Now(), **fields)
    row.refresh_from_db()
    return row


def _full() -> InvalidEdit:
    return InvalidEdit({"incident": [f"An incident has at most {MAX_LINES:,} notes and steps."]})


def _take(incident: Incident) -> None:
    figures = figures_of([incident]).get(incident.pk)
    if figures is None:
        return
    changed = take_figures(incident, figures)
    if incident.closed_at is None and figures["left"] and incident.quiet_since is not None:
        incident.quiet_since = None
        changed.append("quiet_since")
    if changed:
        incident.save(update_fields=changed)


def _quiet(rows: list[Alert]) -> datetime | None:
    ends = [row.resolved_at for row in rows if row.state == AlertState.RESOLVED and row.resolved_at]
    return max(ends) if len(ends) == len(rows) else None


def _free_cause(incident: Incident, keys: list[str]) -> str:
    """A cause that no other open incident has."""
    if incident.closed_at is not None:
        return keys[0]
    others = Incident.objects.filter(environment=incident.environment, closed_at=None).exclude(pk=incident.pk)
    taken = set(others.filter(cause__in=keys).values_list("cause", flat=True))
    free = [key for key in keys if key not in taken]
    if not free:
        raise InvalidEdit({"alert": ["Other incidents are open for all alerts that would remain."]})
    return free[0]


def _check_free(environment: str, key: str, source: Incident) -> None:
    open_now = Incident.objects.filter(environment=environment, cause=key, closed_at=None)
    other = open_now.exclude(pk=source.pk).first()
    if other is not None:
        raise InvalidEdit({"alert": [f"Incident {other.pk} is open for this alert. Merge the two instead."]})


def record_incident(
    incident: Incident, action: str, actor: Actor, *, reason: str, after: dict[str, object] | None = None
) -> None:
    record(
        actor=actor,
        action=action,
        target_kind="incident",
        target_name=f"{incident.pk} {incident.title}"[:200],
        after=after,
        reason=reason,
        environment=incident.environment,
    )
