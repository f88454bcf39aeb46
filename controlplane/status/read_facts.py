"""Reads the rows behind the facts. Blocking: call it in a thread."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Exists, Min, OuterRef
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.accounts.models import Role
from controlplane.approvals.proposals import needed_in, pending_in
from controlplane.audit.models import Entry
from controlplane.audit_export.waiting import waiting_exports
from controlplane.breakers.models import Override as OverrideRow
from controlplane.breakers.models import Transition as TransitionRow
from controlplane.fleet import live
from controlplane.fleet.models import EventKind, RedisNode
from controlplane.policies.document import tuning_of
from controlplane.policies.models import Dependency as DependencyRow
from controlplane.policies.models import Environment, VendorLimit
from controlplane.publishing.models import Ahead, OutboxEntry
from controlplane.publishing.unknown_revisions import unknown_revisions
from controlplane.refusals.dependencies import refused_by
from controlplane.series.recent import recent_p99_ms
from controlplane.status import scheduled_changes
from controlplane.status.facts import (
    Change,
    Dependency,
    EnvironmentFacts,
    Facts,
    Override,
    PodEvent,
    PodFacts,
    Transition,
    TripFigures,
)
from controlplane.status.read_backlogs import read_backlogs
from controlplane.status.read_observing import read_observing
from controlplane.status.read_servers import read_servers
from controlplane.status.read_watched import read_watched
from controlplane.status.unlimited import nothing_is_limited
from controlplane.status.watched import Blind, RedisServer, capacity_of
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

#: Enough for six hours of a breaker that flaps.
_TRANSITIONS = 400
_CHANGES = 60
#: The worker reads servers of Redis each 10 s.
REDIS_FRESH_FOR = timedelta(seconds=60)
#: Samples are read of a dependency that has a larger share of its calls refused: an alert names what refuses.
_MOSTLY_REFUSED = 0.5
_PEOPLE = frozenset(Role.values)
_MACHINES = frozenset(("celery", "command"))


def read_facts(environment: str = DEFAULT_ENVIRONMENT) -> Facts:
    """The facts of now. Raises ``OperationalError`` while Postgres is unavailable."""
    found = _row(environment)
    changes = read_changes(environment)
    transitions = read_transitions(environment)
    now = time.time()
    figures = live.figures(environment)
    watched, redis_servers = read_watched(environment, figures), _redis_servers()
    first = live.first_event(environment)
    return Facts(
        now=now,
        as_of=now,
        **_of_environment(environment, found),
        **_of_pods(environment, figures),
        store_deadline_us=tuning_of(found).store_deadline_us,
        alert_rules=found.alert_rules,
        outbox_oldest_s=_outbox_oldest_s(environment),
        watched=watched,
        refused_by=refused_by(environment, _mostly_refused(figures)),
        call_p99_ms=recent_p99_ms(environment),
        dependencies=_dependencies(environment),
        backlogs=read_backlogs(environment),
        pod_protection=found.protection,
        observing=read_observing(environment, found.protection),
        redis_servers=redis_servers,
        exports=tuple(waiting_exports()) if environment == DEFAULT_ENVIRONMENT else (),
        blind=_blind(watched.blind, redis_servers),
        transitions=transitions,
        known_from=_known_from(first, transitions, now),
        reported=first is not None,
        past_overrides=_past_overrides(environment),
        changes=changes,
        pod_events=_pod_events(environment),
        duplicated=tuple(live.duplicated(environment)),
        ahead=_ahead(environment, found.epoch),
        unknown_revisions=tuple(unknown_revisions(environment)),
        unlimited=nothing_is_limited(environment),
        scheduled=scheduled_changes.upcoming(environment),
        revisions=tuple((c.revision, c.at) for c in reversed(changes) if c.revision is not None),
    )


def read_environment(environment: str) -> EnvironmentFacts:
    """The facts of now that need no pod. Raises ``OperationalError`` while Postgres is unavailable."""
    now = time.time()
    return EnvironmentFacts(now=now, as_of=now, **_of_environment(environment, _row(environment)))


def read_pods(environment: str) -> PodFacts:
    """The pods of now and their rates. Raises ``OperationalError`` while Postgres is unavailable."""
    now, figures = time.time(), live.figures(environment)
    here = _of_environment(environment, _row(environment))
    return PodFacts(now=now, as_of=now, **here, **_of_pods(environment, figures))


def _row(environment: str) -> Environment:
    return Environment.objects.filter(slug=environment).first() or Environment(epoch=0)


def _of_environment(environment: str, found: Environment) -> dict[str, Any]:
    return {
        "environment": environment,
        "epoch": found.epoch,
        "revision": found.revision,
        "frozen_until": found.frozen_until.timestamp() if found.frozen_until else None,
        "frozen_by": found.frozen_by,
        "frozen_reason": found.frozen_reason,
        "schedules_failed": scheduled_changes.failed(environment),
        "approvals_needed": needed_in(environment),
        "requests_open": pending_in(environment),
    }


def _of_pods(environment: str, figures: live.FleetFigures) -> dict[str, Any]:
    return {
        "servers": read_servers(environment),
        "figures": figures,
        "figures_at": None if figures.gateways else live.last_figures_at(environment),
    }


def _mostly_refused(figures: live.FleetFigures) -> list[str]:
    return [name for name, one in figures.dependencies.items() if one.refused_share > _MOSTLY_REFUSED]


def _redis_servers() -> tuple[RedisServer, ...]:
    oldest = timezone.now() - REDIS_FRESH_FOR
    return tuple(
        RedisServer(
            address=row.address,
            role=row.role,
            answers=row.up and row.read_at > oldest,
            ops_per_s=row.ops_per_s or 0.0,
            capacity_ops=capacity_of(row.ops_per_s, row.cpu_share),
            memory_share=row.memory_bytes / row.memory_limit_bytes if row.memory_limit_bytes else 0.0,
            lag_s=row.lag_s or 0.0,
        )
        for row in RedisNode.objects.order_by("address")
    )


def _blind(watched: tuple[Blind, ...], servers: tuple[RedisServer, ...]) -> tuple[Blind, ...]:
    """The sources that cannot be read, each once."""
    found = {one.source: one for one in watched}
    if servers and not any(server.answers for server in servers):
        found.setdefault(
            "redis", Blind(source="redis", since=None, because="no server of Redis answers the worker")
        )
    return tuple(found.values())


def _outbox_oldest_s(environment: str) -> float:
    waiting = OutboxEntry.objects.filter(environment=environment, published_at__isnull=True)
    oldest = waiting.aggregate(age=Now() - Min("created_at"))["age"]
    return oldest.total_seconds() if oldest is not None else 0.0


def _ahead(environment: str, epoch: int) -> str:
    row = Ahead.objects.of(environment).filter(epoch__gte=epoch).first()
    return f"{row.who} has revision {row.epoch}.{row.revision}" if row else ""


def _known_from(first: datetime | None, transitions: tuple[Transition, ...], now: float) -> float:
    """When the first pod reported, or the oldest transition that was read if there are more."""
    begun = first.timestamp() if first is not None else now
    return max(begun, transitions[-1].at) if len(transitions) == _TRANSITIONS else begun


def _pod_events(environment: str) -> tuple[PodEvent, ...]:
    return tuple(
        PodEvent(
            at=row.first.timestamp(),
            server=row.names[0],
            kind="breaker" if row.kind == EventKind.BREAKER else "mode",
            detail=row.detail,
            pods=row.pods,
            more=row.more,
            last=row.last.timestamp(),
            names=row.names,
        )
        for row in live.recent_events(environment)
    )


def _added(environment: str) -> dict[str, float]:
    """Dependencies of the last day, and when they were added."""
    entries = Entry.objects.filter(
        environment=environment,
        action="dependency.created",
        at__gt=datetime.now(UTC) - timedelta(days=1),
    )
    return {name: at.timestamp() for name, at in entries.values_list("target_name", "at")}


def _dependencies(environment: str) -> tuple[Dependency, ...]:
    now = datetime.now(UTC)
    added = _added(environment)
    in_force = OverrideRow.objects.filter(
        dependency__environment=environment, ended_at__isnull=True, expires_at__gt=now
    )
    overrides = {row.dependency_id: _override(row) for row in in_force}
    pauses = VendorLimit.objects.filter(
        dependency=OuterRef("pk"), limit=0, shadow=False, per=[], endpoints=[]
    )
    rows = DependencyRow.objects.filter(environment=environment).select_related("runbook").order_by("name")
    return tuple(
        replace(_dependency(row, overrides.get(row.pk)), added_at=added.get(row.name, 0.0), paused=row.paused)
        for row in rows.annotate(paused=Exists(pauses))
    )


def _dependency(row: DependencyRow, override: Override | None) -> Dependency:
    return Dependency(
        name=row.name,
        title=row.title,
        kind=row.get_kind_display(),
        owner=row.owner,
        fallback=row.fallback_note.rstrip("."),
        runbook=row.runbook_id or "",
        runbook_title=row.runbook.title if row.runbook else "",
        timeout_ms=row.timeout_ms,
        failure_percent=row.failure_percent,
        consecutive_failures=row.consecutive_failures,
        minimum_calls=row.minimum_calls,
        window_s=row.window_s,
        window_calls=row.window_calls,
        open_ms=row.open_ms,
        open_max_ms=row.open_max_ms,
        probes=row.probes,
        successes_to_close=row.successes_to_close,
        protection=row.protection,
        override=override,
    )


def _past_overrides(environment: str) -> dict[str, tuple[Override, ...]]:
    day_ago = datetime.now(UTC) - timedelta(days=1)
    rows = OverrideRow.objects.filter(dependency__environment=environment, ended_at__gt=day_ago)
    past: dict[str, list[Override]] = {}
    for row in rows.select_related("dependency").order_by("-created_at")[:50]:
        ended = row.ended_at.timestamp() if row.ended_at else 0.0
        past.setdefault(row.dependency.name, []).append(replace(_override(row), expires_at=ended))
    return {name: tuple(ended) for name, ended in past.items()}


def _override(row: OverrideRow) -> Override:
    return Override(
        mode=row.mode,
        reason=row.reason,
        actor=row.actor,
        expires_at=row.expires_at.timestamp(),
        made_at=row.created_at.timestamp(),
        revision=row.revision,
        ticket=row.ticket,
    )


def read_transitions(
    environment: str, *, dependency: str = "", count: int = _TRANSITIONS
) -> tuple[Transition, ...]:
    """Newest first; of one dependency, or of all."""
    rows = TransitionRow.objects.filter(dependency__environment=environment).select_related("dependency")
    if dependency:
        rows = rows.filter(dependency__name=dependency)
    return tuple(transition_of(row) for row in rows.order_by("-at", "-generation")[:count])


def transition_of(row: TransitionRow) -> Transition:
    return Transition(
        dependency=row.dependency.name,
        at=row.at.timestamp(),
        before=row.from_state,
        after=row.to_state,
        cause=row.cause,
        actor=row.actor,
        server=row.server,
        generation=row.generation,
        figures=TripFigures(**row.figures) if row.figures else None,
    )


def read_changes(environment: str, *, count: int = _CHANGES) -> tuple[Change, ...]:
    """The newest audit entries of the environment, newest first."""
    rows = Entry.objects.filter(environment=environment).order_by("-at", "-id")[:count]
    return tuple(change_of(row) for row in rows)


def change_of(row: Entry) -> Change:
    return Change(
        id=row.pk,
        at=row.at.timestamp(),
        actor=row.actor,
        human=row.role in _PEOPLE and row.origin not in _MACHINES,
        action=row.action,
        target_kind=row.target_kind,
        target=row.target_name,
        reason=row.reason,
        before=row.before,
        after=row.after,
        revision=row.revision,
        token=row.token,
        owner=row.owner,
        request_id=row.request_id,
        trace_id=row.trace_id,
    )
