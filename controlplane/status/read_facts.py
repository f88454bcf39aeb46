"""Reads the rows behind the facts. Blocking: call it in a thread."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Exists, Min, OuterRef
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.accounts.by_person import with_authors
from controlplane.approvals.pending import pending_in
from controlplane.approvals.proposals import needed_in
from controlplane.audit.models import Entry
from controlplane.audit_export.waiting import waiting_exports
from controlplane.backlogs.figures import BacklogSeen, from_document
from controlplane.backlogs.models import Backlog
from controlplane.breakers.models import Override as OverrideRow
from controlplane.breakers.models import Transition as TransitionRow
from controlplane.fleet import live
from controlplane.fleet.models import RedisNode
from controlplane.policies.document import tuning_of
from controlplane.policies.models import Dependency as DependencyRow
from controlplane.policies.models import Environment, VendorLimit
from controlplane.publishing.models import Ahead, OutboxEntry
from controlplane.publishing.unknown_revisions import unknown_revisions
from controlplane.refusals.dependencies import refused_by
from controlplane.same_fields import made_from
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
from controlplane.status.read_observing import read_observing
from controlplane.status.read_servers import read_servers
from controlplane.status.read_suspended import read_suspended
from controlplane.status.read_watched import read_watched
from controlplane.status.watched import Blind, RedisServer, capacity_of
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

#: Enough for six hours of a breaker that flaps.
_TRANSITIONS = 400
_CHANGES = 60
#: The worker reads servers of Redis each 10 s.
REDIS_FRESH_FOR = timedelta(seconds=60)
#: Samples are read of a dependency that has a larger share of its calls refused: an alert names what refuses.
_MOSTLY_REFUSED = 0.5


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
        suspended=read_suspended(environment, figures),
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
        pod_events=recent_events(environment),
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
        "requests": pending_in(environment),
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


#: Events of one pod, so that a pod that changes all the time hides no other.
RECENT_OF_ONE_POD = 20
_MAX_EVENTS = 300
#: By half minutes: what begins in one and ends in the next has two rows. Pods that start have a row apart
#: from those that lose Redis: most of them would name the cause for all.
_RECENT = """
    WITH newest AS (
        SELECT kind, detail, at, id, server FROM fleet_event
        WHERE environment = %(environment)s AND kind IN ('mode', 'breaker') AND at > now() - interval '1 day'
        ORDER BY at DESC, id DESC LIMIT %(rows)s
    ), placed AS (
        SELECT *, row_number() OVER (PARTITION BY server ORDER BY at DESC, id DESC) AS place FROM newest
        WHERE NOT (kind = 'mode' AND detail LIKE 'ramping -> shared%%')
    )
    SELECT kind, mode() WITHIN GROUP (ORDER BY detail), min(at), max(at), count(DISTINCT server),
           (array_agg(DISTINCT server::text))[1:3], (SELECT count(*) FROM newest)
    FROM placed
    WHERE place <= %(of_one_pod)s
    GROUP BY kind, CASE kind WHEN 'mode' THEN split_part(detail, ': ', 1) ELSE detail END,
             detail LIKE '%%: not connected yet', floor(extract(epoch FROM at) / 30)
    ORDER BY 3 DESC LIMIT %(most)s
"""


def recent_events(environment: str, *, rows: int = 10_000) -> tuple[PodEvent, ...]:
    """Changed modes and own breakers of all pods in the last day, newest first.

    Postgres counts the pods, because an outage has a row of every pod, three times. At most ``rows`` of
    them are read: this is done every second. The end of a ramp is left out: its beginning shows that Redis
    is back. Pods that lose Redis report different causes: an event has the most common one.
    """
    bounds = {"rows": rows, "of_one_pod": RECENT_OF_ONE_POD, "most": _MAX_EVENTS}
    with connection.cursor() as cursor:
        cursor.execute(_RECENT, {"environment": environment, **bounds})
        found = cursor.fetchall()
    oldest = min((row[2] for row in found), default=None)
    return tuple(
        PodEvent(
            at=first.timestamp(),
            server=names[0],
            kind=kind,
            detail=detail,
            pods=pods,
            # There may be more pods if the oldest rows were not read.
            more=read == rows and first == oldest,
            last=last.timestamp(),
            names=tuple(names),
        )
        for kind, detail, first, last, pods, names, read in found
    )


def read_backlogs(environment: str) -> tuple[BacklogSeen, ...]:
    """The figures of backlogs that a worker keeps in Postgres."""
    rows = Backlog.objects.filter(environment=environment).order_by("dependency")
    return tuple(from_document(row.dependency, row.document, row.read_at.timestamp()) for row in rows)


#: Stops at the first limit that refuses, which nearly every environment has in a tier.
_LIMITS = """
    SELECT quota.shadow FROM policies_tierquota quota JOIN policies_tier tier ON tier.id = quota.tier_id
    WHERE tier.environment_id = %(environment)s
    UNION ALL
    SELECT shadow FROM policies_subjectlimit WHERE environment_id = %(environment)s
    UNION ALL
    SELECT quota.shadow FROM policies_tenantquota quota JOIN policies_tenant tenant
        ON tenant.id = quota.tenant_id
    WHERE tenant.environment_id = %(environment)s AND NOT tenant.deleted
"""
_NOTHING_LIMITED = f"""
    SELECT NOT EXISTS (SELECT FROM ({_LIMITS}) AS limits WHERE NOT shadow)
       AND EXISTS (SELECT FROM ({_LIMITS}) AS limits)
"""  # noqa: S608 - two texts of this code


def nothing_is_limited(environment: str) -> bool:
    """Whether there are limits, and every one of them is a shadow."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTHING_LIMITED, {"environment": environment})
        return bool(cursor.fetchone()[0])


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
        made_from(
            Dependency,
            row,
            kind=row.get_kind_display(),
            fallback=row.fallback_note.rstrip("."),
            runbook=row.runbook_id or "",
            runbook_title=row.runbook.title if row.runbook else "",
            override=overrides.get(row.pk),
            added_at=added.get(row.name, 0.0),
        )
        for row in rows.annotate(paused=Exists(pauses))
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
    return made_from(Override, row, expires_at=row.expires_at.timestamp(), made_at=row.created_at.timestamp())


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
    rows = with_authors(Entry.objects.filter(environment=environment)).order_by("-at", "-id")[:count]
    return tuple(change_of(row) for row in rows)


def change_of(row: Entry) -> Change:
    """``row``: one of ``with_authors``."""
    return made_from(
        Change,
        row,
        at=row.at.timestamp(),
        human=row.by_person,
        target=row.target_name,
    )
