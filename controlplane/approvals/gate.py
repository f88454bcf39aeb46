"""Where every edit passes: what needs approval becomes a change request here, and no revision.

``controlplane.policies.edits.revise.revise`` asks before it commits, so that no edit can go round
it. An edit that waits was made whole inside its transaction, checked by everything that checks
edits, and taken back; what it had changed is what the request keeps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.utils import timezone
from prometheus_client import Counter

from controlplane.accounts.permissions import may
from controlplane.approvals.models import PENDING, ChangeRequest, ProposedChange, RequestState, Rule
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import EditError, InvalidEdit
from controlplane.policies.fields import different
from controlplane.policies.history import Changed, Fields, as_document, encode, in_parts

#: Who has not looked by then will not.
KEPT = timedelta(days=14)

opened = Counter("fuseboard_change_requests_opened_total", "Edits that became change requests.")

_KEEP = """
    INSERT INTO approvals_proposedchange (request_id, kind, name, before, after)
    SELECT %s, kind, name, before, after
    FROM jsonb_to_recordset(%s::jsonb) AS row(kind text, name text, before jsonb, after jsonb)
"""

#: Kinds of things that entries of the audit name one by one.
_THINGS = ("tier", "dependency", "tenant", "template")


class Waits(Exception):
    """Raised inside the transaction of an edit, to take it back."""


class Proposed(EditError):
    """The edit was not made: it waits for approval, as ``request``."""

    def __init__(self, request: ChangeRequest) -> None:
        self.request = request
        super().__init__(f"It became change request {request.pk}, and waits for approval.")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """An edit as far as somebody has to agree to it."""

    environment: str
    base: int
    actor: Actor
    reason: str
    #: Action, kind and name of the target, before, after: as ``Revision.audit`` was told.
    said: Sequence[tuple[str, str, str, Fields | None, Fields | None]]
    changes: Sequence[Changed]
    whole: bool = False
    restores: int | None = None
    due_at: Any = None
    document: Any = None
    title: str = ""
    lowers_to: int | None = None


def needed_in(environment: str) -> int:
    """How many approvals an edit there needs; 0 for none."""
    found = Rule.objects.filter(pk=environment).values_list("needed", flat=True).first()
    return int(found or 0)


def needed_of(row: ChangeRequest) -> int:
    """The same of one request: what a program asks for, one person more has to see."""
    needed = needed_in(row.environment)
    return needed if row.persons or not needed else needed + 1


def agreed(row: ChangeRequest) -> int:
    """How many people have approved it as it is now, and still may."""
    approved = row.approvals.filter(version=row.version).exclude(person__in=row.persons)
    people = get_user_model()._default_manager.filter(username__in=approved.values("person"))
    return sum(may(person, "approve_change", row.environment) for person in people)


def count(row: ChangeRequest) -> None:
    """Note whether enough people have approved a request, whose row is locked."""
    state = RequestState.APPROVED if agreed(row) >= needed_of(row) else RequestState.OPEN
    if row.state != state:
        row.state = state
        row.save(update_fields=["state"])


def check(*, environment: str, changes: Sequence[Changed], approved: int | None) -> None:
    """Raise ``Waits`` unless the changes may become a revision now.

    Called while the environment's row is locked. ``approved`` is the request that somebody says
    was approved: whether it was, and whether it is the same to the last field, is looked at here.
    """
    if not needed_in(environment):
        return
    row = ChangeRequest.objects.filter(pk=approved, environment=environment).first() if approved else None
    if row is None or row.digest != digest(changes) or agreed(row) < needed_of(row):
        raise Waits
    scheduled = row.state == RequestState.APPLIED and row.schedule is not None
    if row.state != RequestState.APPROVED and not scheduled:
        raise Waits


def propose(given: Proposal, *, replaces: ChangeRequest | None = None) -> ChangeRequest:
    """Keep an edit as a change request, or as the next version of one. Raises ``InvalidEdit``."""
    changes = [change for change in given.changes if different(change.before, change.after)]
    if not changes and given.lowers_to is None:
        raise InvalidEdit({"change": ["It would change nothing."]})
    action, _, target, *_ = given.said[0] if given.said else ("", "", "")
    columns: dict[str, Any] = {
        "base": given.base,
        "action": action,
        "target": target[:200],
        "entries": [_entry(*said) for said in given.said],
        "changed": len(changes),
        "digest": digest(given.changes),
        "expires_at": timezone.now() + KEPT,
        "state": RequestState.OPEN,
    }
    person = person_of(given.actor)
    with transaction.atomic():
        if replaces is None:
            row = ChangeRequest.objects.create(
                environment=given.environment,
                reason=given.reason[:500],
                author=given.actor.name[:200],
                role=given.actor.role,
                origin=given.actor.origin,
                address=given.actor.address[:64],
                persons=[person] if person else [],
                whole=given.whole,
                restores=given.restores,
                due_at=given.due_at,
                document=given.document,
                title=given.title[:200],
                lowers_to=given.lowers_to,
                **columns,
            )
        else:
            row = replaces
            row.changes.all().delete()
            row.version += 1
            row.persons = sorted({*row.persons, person} - {""})
            for name, value in columns.items():
                setattr(row, name, value)
            row.save()
        with connection.cursor() as cursor:
            for part in in_parts(given.changes):
                cursor.execute(_KEEP, [row.pk, encode([as_document(change) for change in part])])
        note(
            row, "change_request.rebased" if replaces else "change_request.opened", given.actor, given.reason
        )
    opened.inc()
    return row


def note(row: ChangeRequest, action: str, actor: Actor, reason: str, **more: Any) -> None:
    """Say in the audit what became of a request; in the transaction of that."""
    record(
        actor=actor,
        action=action,
        target_kind="change_request",
        target_name=str(row)[:200],
        before=None,
        after={
            "state": str(row.state),
            "version": row.version,
            "author": row.author,
            "base": row.base,
            "things": row.changed,
            **more,
        },
        reason=reason[:500],
        environment=row.environment,
        revision=row.revision,
    )


def digest(changes: Sequence[Changed]) -> str:
    """The same for the same changes, in whatever order and from wherever they were read."""
    rows = sorted((change.kind, change.name, as_document(change)) for change in changes)
    return sha256(msgspec.json.encode([row for *_, row in rows], order="sorted")).hexdigest()


def person_of(actor: Actor) -> str:
    """Username of the person behind an actor; empty for a program that nobody answers for."""
    users = get_user_model()._default_manager
    name = actor.person or actor.name
    return name if users.filter(username=name).exists() else ""


def pending_in(environment: str) -> int:
    return ChangeRequest.objects.filter(environment=environment, state__in=PENDING).count()


def changes_of(row: ChangeRequest) -> list[Changed]:
    found = ProposedChange.objects.filter(request=row).order_by("pk")
    return [
        Changed(*values) for values in found.values_list("kind", "name", "before", "after").iterator(10_000)
    ]


def _entry(action: str, kind: str, name: str, before: Fields | None, after: Fields | None) -> Fields:
    """Fields of a thing are among the changes: only what else was said is kept with the entry."""
    told = {} if kind in _THINGS else {"before": before, "after": after}
    return {"action": action, "kind": kind, "name": name, **told}
