"""Freezes an environment: until a time, edits of its configuration are refused. Overrides still work."""

from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.audit.record import acting, record
from controlplane.errors import EditsFrozen, InvalidEdit, find
from controlplane.policies.models import Environment
from controlplane.validation import Problems, check_reason

log = structlog.get_logger(__name__)

#: A freeze that a person forgets must end.
LONGEST = timedelta(days=31)


def freeze_edits(*, environment: str, until: datetime, reason: str, actor: Actor) -> None:
    """Refuse every edit of the configuration until then, or until ``end_freeze``.

    A freeze that exists gets the new end and reason. Raises ``InvalidEdit``.
    """
    problems = Problems()
    problems.reason(reason)
    left = until - timezone.now()
    if not timedelta(0) < left <= LONGEST:
        problems.add("until", f"Choose a time in the next {LONGEST.days} days.")
    problems.settle()
    _write(environment, until, reason, actor, "edit_freeze.begun")


def end_freeze(*, environment: str, reason: str, actor: Actor) -> None:
    """Allow edits again. Raises ``InvalidEdit`` if edits are not frozen."""
    check_reason(reason)
    _write(environment, None, reason, actor, "edit_freeze.ended")


def check_not_frozen(environment: str) -> None:
    """Raise ``EditsFrozen`` while edits are frozen. Called with the lock on the environment's row."""
    row = Environment.objects.filter(pk=environment, frozen_until__gt=timezone.now()).first()
    if row is not None and row.frozen_until is not None:
        raise EditsFrozen(
            environment=environment, until=row.frozen_until, by=row.frozen_by, reason=row.frozen_reason
        )


def _write(environment: str, until: datetime | None, reason: str, actor: Actor, action: str) -> None:
    with transaction.atomic():
        acting(actor)
        # Waits for the edits in progress. They are made before the freeze.
        row = find(Environment.objects.select_for_update(), "environment", pk=environment)
        frozen = row.frozen_until if row.frozen_until and row.frozen_until > timezone.now() else None
        if until is None and frozen is None:
            raise InvalidEdit({"environment": ["Edits are not frozen."]})
        row.frozen_until = until
        row.frozen_by, row.frozen_reason = (actor.name[:200], reason[:500]) if until else ("", "")
        row.save(update_fields=["frozen_until", "frozen_by", "frozen_reason"])
        record(
            actor=actor,
            action=action,
            target_kind="environment",
            target_name=environment,
            before={"frozen_until": frozen.isoformat()} if frozen else None,
            after={"frozen_until": until.isoformat()} if until else None,
            reason=reason,
            environment=environment,
        )
    log.warning(action, environment=environment, until=until and until.isoformat(), by=actor.name)
