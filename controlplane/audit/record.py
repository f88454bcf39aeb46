from typing import Any, NamedTuple

from django.db import connection

from controlplane import request_ids
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry

Fields = dict[str, Any]


class AuditLine(NamedTuple):
    """One audit entry about an edit, without the actor and the reason."""

    action: str
    target_kind: str
    target_name: str
    before: Fields | None
    after: Fields | None


def record(
    *,
    actor: Actor,
    action: str,
    target_kind: str,
    target_name: str,
    before: Fields | None = None,
    after: Fields | None = None,
    reason: str,
    environment: str = "",
    epoch: int | None = None,
    revision: int | None = None,
) -> Entry:
    """Append one entry in the transaction of the change, with the id of the request that makes it.

    It marks the transaction as the application's own, so that triggers do not report the change.
    """
    if connection.in_atomic_block:
        acting(actor)
    return Entry.objects.create(
        actor=actor.name[:200],
        role=actor.role,
        origin=actor.origin,
        address=actor.address[:64],
        token=actor.token[:32],
        owner=actor.person[:150] if actor.token else "",
        **request_ids.current(),
        action=action,
        target_kind=target_kind,
        target_name=target_name[:200],
        before=before,
        after=after,
        reason=reason,
        environment=environment,
        epoch=epoch,
        revision=revision,
    )


def actor_of(entry: Entry) -> Actor:
    origin: Any = entry.origin
    return Actor(name=entry.actor, role=entry.role, origin=origin, person=entry.owner, token=entry.token)


def acting(actor: Actor) -> None:
    """Mark the rest of the current transaction, which must exist, as the application's own.

    Such a transaction records its changes itself. Without the mark, a trigger records every change of a
    configuration or account row: someone used SQL on the database directly. See ``audit/migrations``.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("acting() needs a transaction: call it inside transaction.atomic()")
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', %s, true)", [actor.name or "fuseboard"])
