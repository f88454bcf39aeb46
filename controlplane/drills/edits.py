"""Start and end drills. The pods are chosen once, so what the page displayed is what happens."""

import random
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.drills.models import Drill
from controlplane.errors import find
from controlplane.fleet.live import LIVE_STATES
from controlplane.fleet.models import Server
from controlplane.policies.document import environment_of
from controlplane.validation import Problems, check_reason
from fuseboard.contract.words import DrillKind

LONGEST_MINUTES = 60
MAX_SERVERS = 1_000


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The pods that take part: by name, a percentage of the fleet, or a service. Exactly one is given."""

    servers: Collection[str] = ()
    percent: int | None = None
    service: str = ""


def begin_drill(
    *, environment: str, kind: str, minutes: int, chosen: Chosen, reason: str, actor: Actor
) -> Drill:
    """Have pods simulate a slow or unreachable Redis; they learn it with their next heartbeat."""
    problems = Problems()
    problems.reason(reason)
    problems.choice("kind", kind, DrillKind)
    problems.whole("minutes", minutes, 1, LONGEST_MINUTES)
    problems.settle()
    slug = environment_of(environment).slug
    with transaction.atomic():
        live = {
            server.name: server.service
            for server in Server.objects.filter(environment=slug, state__in=LIVE_STATES)
        }
        servers, words = _choose(chosen, live, problems)
        busy = {name for drill in under_way(slug) for name in drill.servers} & set(servers)
        if busy:
            problems.add(
                "servers", f"Already in a drill: {', '.join(sorted(busy)[:3])}. End that drill first."
            )
        problems.settle()
        drill = Drill.objects.create(
            environment=slug,
            kind=kind,
            servers=sorted(servers),
            chosen=words,
            reason=reason,
            actor=actor.name,
            ends_at=timezone.now() + timedelta(minutes=minutes),
        )
        _audit(drill, "drill.begun", actor, reason)
    return drill


def end_drill(*, environment: str, drill: int, reason: str, actor: Actor) -> Drill:
    """End it early. Raises ``NotFound`` when it is not under way."""
    check_reason(reason)
    with transaction.atomic():
        row = find(under_way(environment).select_for_update(), "drill under way", pk=drill)
        row.ended_at, row.ended_by = timezone.now(), actor.name
        row.save(update_fields=["ended_at", "ended_by"])
        _audit(row, "drill.ended", actor, reason)
    return row


def under_way(environment: str) -> QuerySet[Drill]:
    """Drills that have started and not ended, by the clock of Postgres, oldest first."""
    return Drill.objects.filter(environment=environment, ended_at__isnull=True, ends_at__gt=Now()).order_by(
        "pk"
    )


def _choose(chosen: Chosen, live: dict[str, str], problems: Problems) -> tuple[list[str], str]:
    """Names of live pods, and how they were chosen."""
    if sum((bool(chosen.servers), chosen.percent is not None, bool(chosen.service))) != 1:
        problems.add("servers", "Choose pods by name, a percentage of the fleet, or a service.")
        return [], ""
    if chosen.servers:
        names = sorted(set(chosen.servers))
        if unknown := [name for name in names if name not in live]:
            problems.add("servers", f"Not reporting now: {', '.join(unknown[:5])}.")
        words = names[0] if len(names) == 1 else f"{len(names)} pods"
    elif chosen.service:
        names = [name for name, service in live.items() if service == chosen.service]
        words = f"service {chosen.service}"
        if not names:
            problems.add("service", "No pod of this service is reporting.")
    else:
        problems.whole("percent", chosen.percent, 1, 100)
        problems.settle()
        assert chosen.percent is not None  # noqa: S101 - counted above
        count = -(-len(live) * chosen.percent // 100)
        names, words = random.sample(sorted(live), count), f"{chosen.percent} % of {len(live)} pods"
        if not names:
            problems.add("percent", "No pod is reporting.")
    if len(names) > MAX_SERVERS:
        problems.add("servers", f"At most {MAX_SERVERS:,} pods can take part in one drill.")
    return names, words


def _audit(drill: Drill, action: str, actor: Actor, reason: str) -> None:
    record(
        actor=actor,
        action=action,
        target_kind="drill",
        target_name=drill.chosen,
        after={
            "drill": drill.pk,
            "kind": drill.kind,
            "servers": ", ".join(drill.servers)[:1000],
            "ends_at": (drill.ended_at or drill.ends_at).isoformat(timespec="seconds"),
        },
        reason=reason,
        environment=drill.environment,
    )
