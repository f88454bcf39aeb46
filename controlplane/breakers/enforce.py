"""Overrides and resets, Postgres -> Redis: into the key that the admission scripts read first."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import redis
import structlog
from django.db import InterfaceError, OperationalError
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.breakers.breakers_in_redis import apply_override
from controlplane.breakers.models import Override
from controlplane.breakers.override_in_redis import adopt
from controlplane.metric_catalogue import edits as catalogue
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency
from controlplane.publishing.models import OutboxEntry
from controlplane.redis.scripts import PROMPT_S, limits
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import StoredOverride, parse_override
from fuseboard.contract.words import OverrideMode

log = structlog.get_logger(__name__)

failures = catalogue.ENFORCE_FAILURES.make()


@dataclass(frozen=True)
class Wanted:
    """The override that Redis must have for one dependency, according to Postgres."""

    dependency: str
    override: Override | None
    #: Resets that Redis has not applied, oldest first.
    resets: tuple[OutboxEntry, ...]


def enforce(
    environment: str, *, only: Collection[str] | None = None, actor: str = "", deadline_s: float = PROMPT_S
) -> list[str]:
    """Write overrides and resets from Postgres to Redis. Return the dependencies that changed.

    The history names ``actor`` as the one who ended an override. Raises ``redis.RedisError``.
    """
    store = limits(deadline_s=deadline_s)
    if only is None:
        adopt(store, environment)
    # Read the revision first. An override made after this line is newer, so the script does not end it.
    revision = environment_of(environment).revision
    wanted = _wanted(environment, only)
    if not wanted:
        return []
    with store.pipeline(transaction=False) as pipeline:
        for item in wanted:
            pipeline.get(keys.override(environment, item.dependency))
        texts = pipeline.execute(raise_on_error=False)
    changed = []
    now = timezone.now()
    for item, text in zip(wanted, texts, strict=True):
        stored = parse_override(text) if isinstance(text, str) else None
        if _apply(store, environment, item, stored, revision=revision, actor=actor, now=now):
            changed.append(item.dependency)
            log.info("breaker.enforced", environment=environment, dependency=item.dependency)
    return changed


def enforce_promptly(environment: str, dependency: str, actor: str) -> None:
    """Call ``enforce`` right after a commit if Redis answers promptly. If not, the reconciler does."""
    try:
        enforce(environment, only=[dependency], actor=actor)
    except (redis.RedisError, OperationalError, InterfaceError) as error:
        failures.inc()
        log.warning(
            "breaker.enforce_left_to_reconciler",
            environment=environment,
            dependency=dependency,
            error=str(error),
        )


def _wanted(environment: str, only: Collection[str] | None) -> list[Wanted]:
    dependencies = Dependency.objects.filter(environment_id=environment).order_by("name")
    if only is not None:
        dependencies = dependencies.filter(name__in=only)
    overrides = {
        row.dependency_id: row
        for row in Override.objects.filter(dependency__in=dependencies, ended_at__isnull=True)
    }
    resets: dict[str, list[OutboxEntry]] = {}
    waiting = OutboxEntry.objects.filter(environment=environment, published_at__isnull=True).exclude(reset="")
    for entry in waiting.order_by("revision"):
        resets.setdefault(entry.reset, []).append(entry)
    return [
        Wanted(dependency=row.name, override=overrides.get(row.pk), resets=tuple(resets.get(row.name, ())))
        for row in dependencies
    ]


def _apply(
    store: redis.Redis,
    environment: str,
    wanted: Wanted,
    stored: StoredOverride | None,
    *,
    revision: int,
    actor: str,
    now: datetime,
) -> bool:
    """Return whether anything changed in Redis."""
    done = False
    for entry in wanted.resets:
        by = Entry.objects.filter(environment=environment, epoch=entry.epoch, revision=entry.revision).first()
        done |= apply_override(
            store, environment, wanted.dependency, "reset", entry.revision, 0, by.actor if by else ""
        )
        OutboxEntry.objects.filter(pk=entry.pk).update(published_at=Now())
    override = wanted.override
    if override is not None and override.in_force(now):
        target = StoredOverride(
            mode=OverrideMode(override.mode),
            expires_at_us=override.expires_at_us,
            revision=override.revision,
        )
        if done or stored != target:
            done |= apply_override(
                store,
                environment,
                wanted.dependency,
                target.mode,
                target.revision,
                target.expires_at_us,
                override.actor,
            )
    elif stored is not None and not done:
        done = apply_override(store, environment, wanted.dependency, "end", revision, 0, actor)
    return done
