"""Forces a breaker open, or resets it, while Postgres is down.

Protection must not wait for the store that only makes it durable. So the override goes to Redis
alone, with a note of who and why in a stream there. When Postgres is back, and before anything else
changes overrides, the notes become ordinary overrides, revisions and audit entries. Only users with
a session can do this, because Postgres checks the tokens of API clients.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
import structlog
from django.db import DataError
from django.db import Error as DatabaseError
from django.db.models import Q, QuerySet
from django.utils import timezone
from msgspec.structs import asdict

from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.breakers.breakers_in_redis import apply_override
from controlplane.breakers.models import Override
from controlplane.breakers.override_in_gateways import HandedOverride
from controlplane.breakers.tickets import ticket_problem
from controlplane.editing.revise import Revision, revise
from controlplane.errors import NotFound
from controlplane.policies.models import Dependency
from controlplane.publishing.publish import read_head
from controlplane.redis.scripts import limits
from controlplane.validation import Problems, printable
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker, parse_override
from fuseboard.contract.words import OverrideMode

log = structlog.get_logger(__name__)

LONGEST = timedelta(minutes=30)
#: Deadline for reading the notes.
GLANCE_S = 0.3


def force_open_without_postgres(
    *, environment: str, dependency: str, reason: str, expires_at: datetime, actor: Actor, ticket: str = ""
) -> None:
    """Force a breaker open through Redis alone. Raises ``redis.RedisError`` when Redis is down, too."""
    problems = Problems()
    problems.slug("dependency", dependency)
    problems.reason(reason)
    problems.end(
        "expires_at", expires_at, LONGEST, "Choose a time at most 30 minutes from now while Postgres is down."
    )
    if wrong := ticket_problem(ticket):
        problems.add("ticket", wrong)
    problems.settle()
    _act(
        environment, dependency, OverrideMode.FORCED_OPEN, reason, actor, expires_at=expires_at, ticket=ticket
    )


def reset_without_postgres(*, environment: str, dependency: str, reason: str, actor: Actor) -> None:
    """Close a breaker through Redis alone. It removes protection, so the caller must confirm first."""
    problems = Problems()
    problems.slug("dependency", dependency)
    problems.reason(reason)
    problems.settle()
    _act(environment, dependency, "reset", reason, actor)


def _act(
    environment: str,
    dependency: str,
    what: str,
    reason: str,
    actor: Actor,
    *,
    expires_at: datetime | None = None,
    ticket: str = "",
) -> None:
    store = limits()
    head = read_head(store, environment)
    text: Any = store.get(keys.override(environment, dependency))
    stored = parse_override(text)
    # Above every revision in Redis. The revision that Postgres assigns later is at least as high.
    revision = max(head.revision if head else 0, stored.revision if stored else 0) + 1
    expires_at_us = int(expires_at.timestamp() * 1_000_000) if expires_at else 0
    note = {
        "what": what,
        "dependency": dependency,
        "reason": reason,
        "expires_at_us": expires_at_us,
        "actor": actor.name,
        "role": actor.role,
        "origin": actor.origin,
        "address": actor.address,
        "ticket": ticket,
    }
    # The note comes first. Without one, the override would be ended as unknown.
    store.xadd(keys.emergency(environment), {"note": json.dumps(note)})
    apply_override(store, environment, dependency, what, revision, expires_at_us, actor.name)
    _make_pods_ask(store, environment, dependency)
    log.warning("breaker.acted_without_postgres", environment=environment, dependency=dependency, what=what)


def _make_pods_ask(store: redis.Redis, environment: str, dependency: str) -> None:
    """Make pods ask Redis again. They cache a breaker until its time, and no new document comes now."""
    text: Any = store.get(keys.breaker(environment, dependency))
    breaker = parse_breaker(text)
    if breaker is not None:
        # Open for no time at all: a pod that receives this asks Redis with its next call.
        store.publish(keys.breaker_channel(environment), f"{dependency} {breaker.generation} 0")


def adopt(store: redis.Redis, environment: str) -> None:
    """Turn the notes into overrides and audit entries, oldest first, each once."""
    try:
        entries: Any = store.xrange(keys.emergency(environment), count=100)
    except redis.ResponseError as error:
        log.error("emergency.unreadable", environment=environment, error=str(error))
        return
    for entry_id, fields in entries:
        try:
            _adopt(environment, entry_id, _note_of(fields))
        except (KeyError, ValueError, TypeError, OverflowError, Dependency.DoesNotExist, DataError) as error:
            log.error("emergency.unreadable", environment=environment, entry=entry_id, error=str(error))
        store.xdel(keys.emergency(environment), entry_id)


def noted(environment: str) -> dict[str, dict[str, Any]]:
    """Return dependency -> its newest note that is not adopted yet, with its id.

    Raises ``redis.RedisError``. The deadline is short, because an operator is waiting for the page.
    """
    entries: Any = limits(deadline_s=GLANCE_S).xrevrange(keys.emergency(environment), count=100)
    found: dict[str, dict[str, Any]] = {}
    for entry_id, fields in entries:
        with suppress(KeyError, ValueError, TypeError):  # ``adopt`` logs them
            note = _note_of(fields)
            kept = {name: note[name] for name in ("what", "dependency", "reason", "actor")}
            # Version 0.1 notes none.
            kept["ticket"] = str(note.get("ticket", ""))
            found.setdefault(
                note["dependency"], kept | {"id": entry_id, "expires_at_us": int(note["expires_at_us"])}
            )
    return found


def _note_of(fields: dict[str, str]) -> dict[str, Any]:
    """The note of an entry, with texts that Postgres stores and pages display."""
    return {
        name: printable(value, lines=name == "reason") if isinstance(value, str) else value
        for name, value in dict(json.loads(fields["note"])).items()
    }


def adopt_handed(overrides: Sequence[HandedOverride]) -> list[str]:
    """Adopt the overrides that gateways keep in memory, each once. Return the ids that are done."""
    settled = []
    for handed in overrides:
        note = {"what": OverrideMode.FORCED_OPEN.value, "without": "postgres and redis", **asdict(handed)}
        try:
            _adopt(handed.environment, handed.id, note)
        except (NotFound, Dependency.DoesNotExist, DataError) as error:
            log.error(
                "emergency.unreadable", environment=handed.environment, entry=handed.id, error=str(error)
            )
        except DatabaseError as error:
            # It stays in memory and is tried again at the next reading.
            log.warning("emergency.adoption_waits", environment=handed.environment, error=str(error))
            break
        settled.append(handed.id)
    return settled


class _AdoptedBefore(Exception):
    """A process committed the note before, and died before it removed the note."""


def _adopt(environment: str, entry_id: str, note: dict[str, Any]) -> None:
    actor = Actor(
        name=str(note["actor"]), role=str(note["role"]), origin=note["origin"], address=str(note["address"])
    )
    made_at = datetime.fromtimestamp(int(entry_id.partition("-")[0]) / 1000, tz=UTC)
    with (
        suppress(_AdoptedBefore),
        revise(environment=environment, actor=actor, reason=note["reason"], needs_approval=False) as revision,
    ):
        if Entry.objects.filter(environment=environment, after__journal=entry_id).exists():
            raise _AdoptedBefore
        dependency = Dependency.objects.get(environment_id=environment, name=note["dependency"])
        overrides = Override.objects.filter(dependency=dependency)
        superseded = (
            overrides.filter(Q(created_at__gt=made_at) | Q(ended_at__gt=made_at)).exists()
            or _resets_since(environment, dependency.name, made_at).exists()
        )
        if not superseded:
            # The override ends at the time of the note, because the next note is newer than this one.
            overrides.filter(ended_at__isnull=True).update(ended_at=made_at, ended_by=actor.name)
            _store(revision, dependency, note, made_at)
        revision.audit(
            f"breaker.{'reset' if note['what'] == 'reset' else 'held'}",
            target_kind="dependency",
            target_name=dependency.name,
            before=None,
            after={
                "override.mode": note["what"],
                "made_at": made_at.isoformat(timespec="seconds"),
                "made_without": note.get("without", "postgres"),
                "superseded": superseded,
                "journal": entry_id,
                **({"override.ticket": note["ticket"]} if note.get("ticket") else {}),
            },
        )
    log.info("emergency.adopted", environment=environment, entry=entry_id)


def _resets_since(environment: str, dependency: str, made_at: datetime) -> QuerySet[Entry]:
    """Return later resets. An adopted one is left out: its entry has the time of its adoption."""
    resets = Entry.objects.filter(
        environment=environment, action="breaker.reset", target_name=dependency, at__gt=made_at
    )
    return resets.exclude(after__has_key="journal")


def _store(revision: Revision, dependency: Dependency, note: dict[str, Any], made_at: datetime) -> None:
    if note["what"] == "reset":
        # Redis has done it already. Pods that cannot reach Redis learn it from the document.
        dependency.reset_revision = revision.number
        dependency.save(update_fields=["reset_revision"])
        return
    expires_at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=note["expires_at_us"])
    if expires_at > timezone.now():
        Override.objects.create(
            dependency=dependency,
            mode=OverrideMode.FORCED_OPEN,
            reason=note["reason"],
            actor=note["actor"],
            created_at=made_at,
            expires_at=expires_at,
            ticket=note.get("ticket", ""),
            revision=revision.number,
        )
