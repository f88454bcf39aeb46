"""Edits of the dead jobs of a backlog: return them to the queue, or delete them."""

from datetime import UTC, datetime, timedelta

import redis
import structlog
from django.db import Error as DatabaseError
from django.db import transaction

from controlplane.audit.actor import Actor
from controlplane.audit.record import acting, record
from controlplane.backlogs.dead_jobs import DELETE, RETURN, Changed, change_dead, read_dead
from controlplane.errors import NotFound
from controlplane.policies.models import Dependency
from controlplane.validation import Problems

log = structlog.get_logger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ACTIONS = {RETURN: "backlog.dead_returned", DELETE: "backlog.dead_deleted"}


def return_dead_jobs(
    *, environment: str, dependency: str, until: datetime | None, reason: str, actor: Actor
) -> Changed:
    """Hand dead jobs out again, with all their tries; those that died until then, by the clock of Redis.

    ``None`` for all. A job that dies again meanwhile stays dead. A deadline that has passed no longer counts.
    Those that do not fit into the queue stay dead. Raises ``InvalidEdit``, ``NotFound`` and
    ``redis.RedisError``.
    """
    return _change(environment, dependency, RETURN, until, reason, actor)


def delete_dead_jobs(
    *, environment: str, dependency: str, until: datetime | None, reason: str, actor: Actor
) -> Changed:
    """Delete dead jobs with their payloads. Their result is ``cancelled`` for an hour."""
    return _change(environment, dependency, DELETE, until, reason, actor)


def _change(
    environment: str, dependency: str, what: int, until: datetime | None, reason: str, actor: Actor
) -> Changed:
    problems = Problems()
    problems.reason(reason)
    if until is not None and until.tzinfo is None:
        problems.add("until", "Give the time zone.")
    problems.settle()
    if not Dependency.objects.filter(environment_id=environment, name=dependency).exists():
        raise NotFound("dependency", dependency)
    # Redis answers now, so what fails below may have happened.
    until_us = read_dead(environment, dependency).now_us
    if until is not None:
        until_us = max(1, (until - _EPOCH) // timedelta(microseconds=1))
    with transaction.atomic():
        # Jobs change only while Postgres can keep the entry.
        acting(actor)
        changed, error = _attempt(environment, dependency, what, until_us)
        after = changed.as_audit()
        try:
            record(
                actor=actor,
                action=_ACTIONS[what],
                target_kind="dependency",
                target_name=dependency,
                before={"until": (_EPOCH + timedelta(microseconds=until_us)).isoformat(timespec="seconds")},
                after=after,
                reason=reason,
                environment=environment,
            )
        except DatabaseError:
            log.exception("backlog.not_audited", dependency=dependency, actor=actor.name, **after)
            raise
    log.warning(
        _ACTIONS[what], environment=environment, dependency=dependency, actor=actor.name, jobs=changed.number
    )
    if error is not None:
        raise error
    return changed


def _attempt(
    environment: str, dependency: str, what: int, until_us: int
) -> tuple[Changed, redis.RedisError | None]:
    try:
        return change_dead(environment, dependency, what, until_us=until_us), None
    except (redis.TimeoutError, redis.ConnectionError) as error:
        # The script may have run before the answer was lost, so there is an entry.
        return Changed(number=0, left=0, full=False, unknown=True), error
