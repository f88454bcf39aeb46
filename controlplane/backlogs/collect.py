"""Backlogs in Redis -> rows in Postgres, for pages, alerts and ``/metrics``."""

from collections.abc import Mapping
from typing import Any

import msgspec
import redis
import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.backlogs.figures import to_document
from controlplane.backlogs.models import Backlog
from controlplane.backlogs.scripts import LOOK, keys_of
from controlplane.policies.models import Dependency
from controlplane.redis.read_many import ask_many, run_each
from controlplane.redis.scripts import PATIENT_S
from fuseboard.contract import keys
from fuseboard.contract.backlog_figures import BacklogFigures

log = structlog.get_logger(__name__)


def measure_backlogs(environment: str) -> int:
    """Read every backlog that was ever used. Return how many.

    One that cannot be read, because of its data or because its primary of a Cluster is down, keeps its last
    figures. Raises ``redis.RedisError`` if no server answers.
    """
    names = list(
        Dependency.objects.filter(environment_id=environment).order_by("name").values_list("name", flat=True)
    )
    used = _used(environment, names)
    read_at = timezone.now()
    found = _look(environment, [name for name, answer in used.items() if answer is True])
    with transaction.atomic():
        rows = Backlog.objects.filter(environment=environment)
        before = {row.dependency: row.document for row in rows}
        # Only those that Redis says are not there.
        if gone := before.keys() - {name for name, answer in used.items() if answer is not False}:
            rows.filter(dependency__in=gone).delete()
        Backlog.objects.bulk_create(
            [
                Backlog(
                    environment=environment,
                    dependency=name,
                    read_at=read_at,
                    document=to_document(figures, before.get(name, {}), read_at.timestamp()),
                )
                for name, figures in found.items()
            ],
            update_conflicts=True,
            unique_fields=["environment", "dependency"],
            update_fields=["read_at", "document"],
        )
    return len(found)


def _used(environment: str, names: list[str]) -> dict[str, bool | Exception]:
    """Whether each dependency has a backlog, by one small question each."""
    stats = {keys.backlog(environment, name, "stats"): name for name in names}
    answers = ask_many(stats, lambda pipeline, key: pipeline.exists(key), deadline_s=PATIENT_S)
    found = {
        stats[key]: answer if isinstance(answer, Exception) else bool(answer)
        for key, answer in answers.items()
    }
    _say_unreadable(environment, found)
    return found


def _look(environment: str, names: list[str]) -> dict[str, BacklogFigures]:
    answers = run_each(LOOK, [keys_of(environment, name) for name in names], [], deadline_s=PATIENT_S)
    found: dict[str, Any] = {}
    for name, answer in zip(names, answers, strict=True):
        try:
            if isinstance(answer, Exception):
                raise answer
            found[name] = msgspec.convert(answer[0], BacklogFigures)
        except (redis.RedisError, msgspec.ValidationError, LookupError, TypeError) as error:
            found[name] = error
    _say_unreadable(environment, found)
    return {name: figures for name, figures in found.items() if isinstance(figures, BacklogFigures)}


def _say_unreadable(environment: str, found: Mapping[str, Any]) -> None:
    unreadable = {name: answer for name, answer in found.items() if isinstance(answer, Exception)}
    if unreadable:
        name, error = next(iter(unreadable.items()))
        log.warning(
            "backlog.unreadable",
            environment=environment,
            dependency=name,
            error=str(error),
            number=len(unreadable),
        )
