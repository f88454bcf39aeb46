"""Marks an alert as acknowledged, so that others see who works on it. At night a note is optional."""

import structlog
from django.db import transaction
from django.db.models.functions import Now

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import InvalidEdit, find

log = structlog.get_logger(__name__)


def acknowledge_alert(*, environment: str, number: int, note: str, actor: Actor, seen: str = "") -> Alert:
    """Take an alert that fires. It ends with the alert, or when the alert becomes critical.

    ``seen`` is the severity that the person has read, if that is known. Raises ``NotFound``, or
    ``InvalidEdit`` for an alert that is pending, resolved, critical by now, or already taken by the same
    person.
    """
    return _write(environment, number, note, actor, taken=True, seen=seen)


def release_alert(*, environment: str, number: int, note: str, actor: Actor) -> Alert:
    """Give an alert back. Raises ``NotFound``, or ``InvalidEdit`` if nobody has taken it."""
    return _write(environment, number, note, actor, taken=False)


def _write(environment: str, number: int, note: str, actor: Actor, *, taken: bool, seen: str = "") -> Alert:
    with transaction.atomic():
        row = find(Alert.objects.select_for_update().filter(environment=environment), "alert", pk=number)
        if row.state not in (AlertState.FIRING, AlertState.RECOVERING):
            raise InvalidEdit({"alert": [f"This alert is {row.state}, so it cannot be acknowledged."]})
        if (seen, row.severity) == ("warning", "critical"):
            raise InvalidEdit({"alert": ["This alert has just become critical. Read it, then try again."]})
        before = row.acknowledged_by
        if taken and before == actor.name[:200]:
            raise InvalidEdit({"alert": ["You have acknowledged this alert already."]})
        if not taken and not before:
            raise InvalidEdit({"alert": ["This alert is not acknowledged."]})
        row.acknowledged_by = actor.name[:200] if taken else ""
        row.note = note[:500] if taken else ""
        row.acknowledged_at = Now() if taken else None
        row.save(update_fields=["acknowledged_by", "acknowledged_at", "note"])
        action = "alert.acknowledged" if taken else "alert.released"
        record(
            actor=actor,
            action=action,
            target_kind="alert",
            target_name=row.key,
            before={"acknowledged_by": before} if before else None,
            after={"acknowledged_by": row.acknowledged_by} if taken else None,
            reason=note,
            environment=environment,
        )
        row.refresh_from_db()
    log.info(action, environment=environment, key=row.key, by=actor.name)
    return row
