"""Edits of a breaker: override it, end the override, reset it."""

from contextlib import suppress
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.audit.actor import FUSEBOARD, Actor
from controlplane.breakers.enforce import enforce_promptly
from controlplane.breakers.models import Override
from controlplane.breakers.tickets import ticket_problem
from controlplane.editing.revise import Revision, revise
from controlplane.errors import NotFound, find
from controlplane.policies.models import Dependency, Environment
from controlplane.validation import Problems, check_reason
from fuseboard.contract.words import OverrideMode

LONGEST = timedelta(hours=24)
#: A breaker that is forced closed protects nothing.
LONGEST_CLOSED = timedelta(minutes=15)


def override_breaker(
    *,
    environment: str,
    dependency: str,
    mode: OverrideMode,
    reason: str,
    expires_at: datetime,
    actor: Actor,
    ticket: str = "",
) -> int:
    """Override the breaker until ``expires_at``. Replaces the present override, if there is one."""
    return _override(
        "breaker.held",
        environment=environment,
        dependency=dependency,
        mode=mode,
        reason=reason,
        expires_at=expires_at,
        actor=actor,
        ticket=ticket,
    )


def _override(
    action: str,
    *,
    environment: str,
    dependency: str,
    mode: OverrideMode,
    reason: str,
    expires_at: datetime,
    actor: Actor,
    ticket: str,
) -> int:
    problems = Problems()
    problems.reason(reason)
    problems.choice("mode", mode, OverrideMode)
    _check_expiry(problems, mode, expires_at)
    if wrong := ticket_problem(ticket):
        problems.add("ticket", wrong)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason, needs_approval=False) as revision:
        row = _dependency(environment, dependency)
        before = _end_current(row, by=actor.name)
        held = Override.objects.create(
            dependency=row,
            mode=mode,
            reason=reason,
            actor=actor.name,
            expires_at=expires_at,
            ticket=ticket,
            revision=revision.number,
        )
        _audit(revision, action, dependency, before, held)
        _enforce_after_commit(environment, dependency, actor)
    return revision.number


def extend_override(
    *,
    environment: str,
    dependency: str,
    reason: str,
    expires_at: datetime,
    actor: Actor,
    ticket: str | None = None,
) -> int:
    """Give the present override another end. Raises ``NotFound`` when there is none.

    It keeps its ticket when ``ticket`` is ``None``.
    """
    with transaction.atomic():
        # Locked, so that no one ends it or changes its mode in between.
        Environment.objects.select_for_update().filter(pk=environment).first()
        current = Override.objects.filter(
            dependency=_dependency(environment, dependency),
            ended_at__isnull=True,
            expires_at__gt=timezone.now(),
        ).first()
        if current is None:
            raise NotFound("override of", dependency)
        return _override(
            "breaker.extended",
            environment=environment,
            dependency=dependency,
            mode=OverrideMode(current.mode),
            reason=reason,
            expires_at=expires_at,
            actor=actor,
            ticket=current.ticket if ticket is None else ticket,
        )


def end_override(*, environment: str, dependency: str, reason: str, actor: Actor) -> int:
    """End the override: the breaker is automatic again. Raises ``NotFound`` when there is none."""
    check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason, needs_approval=False) as revision:
        before = _end_current(_dependency(environment, dependency), by=actor.name)
        if before is None:
            raise NotFound("override of", dependency)
        _audit(revision, "breaker.released", dependency, before, None)
        _enforce_after_commit(environment, dependency, actor)
    return revision.number


def reset_breaker(*, environment: str, dependency: str, reason: str, actor: Actor) -> int:
    """Close the breaker and clear its counts. Ends the present override, if there is one."""
    check_reason(reason)
    with revise(
        environment=environment, actor=actor, reason=reason, resets_breaker=dependency, needs_approval=False
    ) as revision:
        row = _dependency(environment, dependency)
        before = _end_current(row, by=actor.name)
        row.reset_revision = revision.number
        row.save(update_fields=["reset_revision"])
        _audit(revision, "breaker.reset", dependency, before, None)
        _enforce_after_commit(environment, dependency, actor)
    return revision.number


def expire_overrides() -> list[str]:
    """Mark expired overrides as ended, each in a separate revision. Return the dependencies."""
    over = Override.objects.filter(ended_at__isnull=True, expires_at__lte=timezone.now())
    due = list(over.values_list("pk", "dependency__environment_id", "dependency__name"))
    expired = []
    for pk, environment, dependency in due:
        with (
            suppress(_AlreadyEnded),
            revise(
                environment=environment, actor=FUSEBOARD, reason="The override expired.", needs_approval=False
            ) as revision,
        ):
            override = over.filter(pk=pk).select_related("dependency").first()
            if override is None:
                # Another process was faster. This rolls back the revision taken above.
                raise _AlreadyEnded
            before = _end_current(override.dependency, by=FUSEBOARD.name)
            _audit(revision, "override.expired", dependency, before, None)
            _enforce_after_commit(environment, dependency, FUSEBOARD)
            expired.append(dependency)
    return expired


class _AlreadyEnded(Exception):
    pass


def _check_expiry(problems: Problems, mode: OverrideMode, expires_at: datetime) -> None:
    longest = LONGEST_CLOSED if mode == OverrideMode.FORCED_CLOSED else LONGEST
    hours, minutes = divmod(int(longest.total_seconds()) // 60, 60)
    longest_words = f"{hours} h" if hours else f"{minutes} minutes"
    too_late = f"Choose a time at most {longest_words} from now."
    problems.end("expires_at", expires_at, longest, too_late)


def _dependency(environment: str, name: str) -> Dependency:
    return find(Dependency.objects.filter(environment_id=environment), "dependency", name=name)


def _end_current(dependency: Dependency, *, by: str) -> Override | None:
    """End the present override and return it."""
    current = Override.objects.filter(dependency=dependency, ended_at__isnull=True).first()
    if current is not None:
        current.ended_at = timezone.now()
        current.ended_by = by
        current.save(update_fields=["ended_at", "ended_by"])
    return current


def _audit(
    revision: Revision, action: str, dependency: str, before: Override | None, after: Override | None
) -> None:
    revision.audit(
        action,
        target_kind="dependency",
        target_name=dependency,
        before=_fields(before),
        after=_fields(after),
    )


def _fields(override: Override | None) -> dict[str, str] | None:
    if override is None:
        return None
    ticket = {"override.ticket": override.ticket} if override.ticket else {}
    return {
        "override.mode": override.mode,
        "override.reason": override.reason,
        "override.expires_at": override.expires_at.isoformat(timespec="seconds"),
        **ticket,
    }


def _enforce_after_commit(environment: str, dependency: str, actor: Actor) -> None:
    # Not a partial: Django logs the name of a function that fails, and a partial has none.
    transaction.on_commit(lambda: enforce_promptly(environment, dependency, actor.name), robust=True)
