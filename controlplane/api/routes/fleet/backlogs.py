from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
import structlog
from django.http import HttpRequest
from ninja import Router
from ninja.errors import HttpError

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.backlogs import (
    BacklogOut,
    DeadJobsChangedOut,
    DeadJobsIn,
    DeadJobsOut,
)
from controlplane.api.schemas.edits_in import Environment, Slug
from controlplane.backlogs.dead_jobs import Changed, read_dead
from controlplane.backlogs.edits import delete_dead_jobs, return_dead_jobs
from controlplane.errors import NotFound
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency
from controlplane.status.backlogs import BacklogStatus
from controlplane.status.read_facts import read_facts
from controlplane.status.status import status_of

log = structlog.get_logger(__name__)

router = Router()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DOWN = "Redis does not answer, and it has the jobs. Read the dead jobs again when it is back."


@router.get("", response=list[BacklogOut])
def list_backlogs(request: HttpRequest, environment: Environment) -> list[BacklogOut]:
    """Every backlog that was ever used, the fullest first, as a worker read it within the last seconds."""
    return [_out(one) for one in _backlogs(environment)]


@router.get("/{dependency}", response=BacklogOut)
def get_backlog(request: HttpRequest, environment: Environment, dependency: Slug) -> BacklogOut:
    for one in _backlogs(environment):
        if one.name == dependency:
            return _out(one)
    raise NotFound("backlog of", dependency)


@router.get("/{dependency}/dead-jobs", response=DeadJobsOut)
def list_dead_jobs(request: HttpRequest, environment: Environment, dependency: Slug) -> dict[str, Any]:
    """The newest 50 dead jobs, read from Redis now. Payloads are never returned."""
    if not Dependency.objects.filter(environment=environment_of(environment), name=dependency).exists():
        raise NotFound("dependency", dependency)
    try:
        found = read_dead(environment, dependency)
    except redis.RedisError as error:
        raise _down(dependency, error) from error
    now = _EPOCH + timedelta(microseconds=found.now_us)
    return {"number": found.number, "now": now, "items": found.listed}


@router.post("/{dependency}/dead-jobs/return", response=DeadJobsChangedOut, auth=needs("change_dead_jobs"))
def return_jobs(
    request: HttpRequest, environment: Environment, dependency: Slug, values: DeadJobsIn
) -> DeadJobsChangedOut:
    """Hand dead jobs out again, with all their tries, also after their deadline.

    Those that do not fit into the queue stay dead.
    """
    return _change(return_dead_jobs, request, environment, dependency, values)


@router.post("/{dependency}/dead-jobs/delete", response=DeadJobsChangedOut, auth=needs("change_dead_jobs"))
def delete_jobs(
    request: HttpRequest, environment: Environment, dependency: Slug, values: DeadJobsIn
) -> DeadJobsChangedOut:
    """Delete dead jobs with their payloads. It cannot be undone."""
    return _change(delete_dead_jobs, request, environment, dependency, values)


def _change(
    edit: Callable[..., Changed],
    request: HttpRequest,
    environment: str,
    dependency: str,
    values: DeadJobsIn,
) -> DeadJobsChangedOut:
    try:
        changed = edit(
            environment=environment_of(environment).slug,
            dependency=dependency,
            until=values.until,
            reason=values.reason,
            actor=actor_of(request),
        )
    except redis.RedisError as error:
        raise _down(dependency, error) from error
    return DeadJobsChangedOut.model_validate(changed)


def _down(dependency: str, error: redis.RedisError) -> HttpError:
    log.warning("backlog.not_reached", dependency=dependency, error=str(error))
    return HttpError(503, _DOWN)


def _backlogs(environment: str) -> tuple[BacklogStatus, ...]:
    return status_of(read_facts(environment_of(environment).slug)).backlogs


def _out(one: BacklogStatus) -> BacklogOut:
    seen, figures = one.seen, one.seen.figures
    return BacklogOut(
        dependency=one.name,
        state=one.state,
        read_at=datetime.fromtimestamp(seen.read_at, UTC),
        ready=figures.ready,
        delayed=figures.delayed,
        leased=figures.leased,
        dead=figures.dead,
        bytes=figures.bytes,
        max_jobs=seen.max_jobs,
        max_bytes=seen.max_bytes,
        used=seen.share,
        wait_s=seen.waiting_s,
        asked_s=seen.asked_s,
        submitted_per_s=seen.rates.get("submitted"),
        done_per_s=seen.rates.get("done"),
        refused_per_s=seen.rates.get("refused"),
    )
