"""Backlogs in Redis -> rows in Postgres, for pages, alerts and ``/metrics``."""

import msgspec
import redis
import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.backlogs.figures import to_document
from controlplane.backlogs.models import Backlog
from controlplane.backlogs.scripts import LOOK, keys_of
from controlplane.policies.models import Dependency
from controlplane.redis.scripts import PATIENT_S, limits
from fuseboard.contract import keys
from fuseboard.contract.backlog_figures import BacklogFigures

log = structlog.get_logger(__name__)


def measure_backlogs(environment: str) -> int:
    """Read every backlog that was ever used. Return how many. Raises ``redis.RedisError``."""
    store = limits(deadline_s=PATIENT_S)
    names = list(
        Dependency.objects.filter(environment_id=environment).order_by("name").values_list("name", flat=True)
    )
    used = _used(store, environment, names)
    read_at = timezone.now()
    found = _look(store, environment, used)
    with transaction.atomic():
        rows = Backlog.objects.filter(environment=environment)
        before = {row.dependency: row.document for row in rows}
        if gone := before.keys() - set(used):
            # Only those that Redis says are not there. One that could not be read keeps its last figures.
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


def _used(store: redis.Redis, environment: str, names: list[str]) -> list[str]:
    """The dependencies that have a backlog, by one small question each, in one go."""
    if not names:
        return []
    with store.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.exists(keys.backlog(environment, name, "stats"))
        answers = pipeline.execute(raise_on_error=True)
    return [name for name, there in zip(names, answers, strict=True) if there]


def _look(store: redis.Redis, environment: str, names: list[str]) -> dict[str, BacklogFigures]:
    answers = LOOK.run_each(store, keys=[keys_of(environment, name) for name in names], args=[])
    found = {}
    for name, answer in zip(names, answers, strict=True):
        try:
            if isinstance(answer, redis.ResponseError):
                raise answer
            found[name] = msgspec.convert(answer[0], BacklogFigures)
        except (redis.ResponseError, msgspec.ValidationError, LookupError, TypeError) as error:
            log.warning("backlog.unreadable", environment=environment, dependency=name, error=str(error))
    return found
