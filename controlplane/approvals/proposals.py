"""Proposals: an edit that needs approval becomes a change request, not a revision.

``controlplane.editing.revise.revise`` asks before it commits, so no edit can bypass this. By then
the edit is complete inside its transaction and has passed every check. It is rolled back, and the
request stores what it changed.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.utils import timezone

from controlplane.accounts.people import person_of
from controlplane.accounts.permissions import may
from controlplane.approvals.models import Approval, ChangeRequest, ProposedChange, RequestState, Rule
from controlplane.audit.actor import Actor
from controlplane.audit.record import AuditLine, record
from controlplane.errors import EditError, InvalidEdit
from controlplane.metric_catalogue import edits as catalogue
from controlplane.policies.fields import Fields, different
from controlplane.policies.history import Changed, as_document, encode, in_parts

#: A pending request expires after this.
EXPIRES_AFTER = timedelta(days=14)

opened = catalogue.CHANGE_REQUESTS_OPENED.make()

_STORE_CHANGES = """
    INSERT INTO approvals_proposedchange (request_id, kind, name, before, after)
    SELECT %s, kind, name, before, after
    FROM jsonb_to_recordset(%s::jsonb) AS row(kind text, name text, before jsonb, after jsonb)
"""

#: Kinds of things that have audit entries of their own.
_THINGS = ("tier", "dependency", "tenant", "template", "model", "account", "budget", "descriptors")


class NeedsApproval(Exception):
    """Raised inside the transaction of an edit, to roll it back."""


class Proposed(EditError):
    """The edit was not made. It awaits approval as ``request``."""

    def __init__(self, request: ChangeRequest) -> None:
        self.request = request
        super().__init__(f"Waiting for approval: change request {request.pk}.")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """An edit that needs approval."""

    environment: str
    #: The revision it was made from.
    base: int
    actor: Actor
    reason: str
    audit_lines: Sequence[AuditLine]
    changes: Sequence[Changed]
    #: See ``revise``.
    conflicts_with_any_change: bool = False
    restores: int | None = None
    reverts: int | None = None
    #: A scheduled change has the time when it is due, its plan, and what must exist then.
    due_at: Any = None
    document: Any = None
    needs: str = ""
    title: str = ""
    #: A change of the rule itself has the number of approvals needed afterwards.
    lowers_to: int | None = None


def needed_in(environment: str) -> int:
    """Return how many approvals an edit there needs; 0 for none."""
    found = Rule.objects.filter(pk=environment).values_list("needed", flat=True).first()
    return int(found or 0)


@dataclass(frozen=True)
class Standing:
    """How many approvals a request needs, and who approved its current version."""

    needed: int
    #: People who may approve now.
    approvers: tuple[str, ...] = ()
    #: People who may not approve any more.
    lost: tuple[str, ...] = ()

    @property
    def agreed(self) -> int:
        return len(self.approvers)

    @property
    def missing(self) -> int:
        return max(0, self.needed - self.agreed)

    @property
    def why_fewer(self) -> str:
        """A sentence about the people whose approvals do not count any more; empty if all count."""
        return f"{', '.join(self.lost)} may not approve any more." if self.lost else ""


def standing(row: ChangeRequest) -> Standing:
    return standings([row])[row.pk]


def standings(rows: Collection[ChangeRequest]) -> dict[int, Standing]:
    """The standing of each request, by its number, with three queries for any number of requests."""
    rules = dict(Rule.objects.filter(pk__in={row.environment for row in rows}).values_list("pk", "needed"))
    approvals = Approval.objects.filter(request__in=rows).order_by("person")
    given: dict[tuple[int, int], list[str]] = {}
    for number, version, person in approvals.values_list("request", "version", "person"):
        given.setdefault((number, version), []).append(person)
    names = {name for persons in given.values() for name in persons}
    people = get_user_model()._default_manager.in_bulk(names, field_name="username")
    found = {}
    for row in rows:
        needed = rules.get(row.environment, 0)
        persons = [name for name in given.get((row.pk, row.version), ()) if name not in row.persons]
        able = [n for n in persons if n in people and may(people[n], "approve_change", row.environment)]
        found[row.pk] = Standing(
            # One more when a program made it.
            needed if row.persons or not needed else needed + 1,
            tuple(able),
            tuple(name for name in persons if name not in able),
        )
    return found


def count(row: ChangeRequest) -> Standing:
    """Update the state of a request from the number of its approvals. Its row must be locked."""
    found = standing(row)
    state = RequestState.OPEN if found.missing else RequestState.APPROVED
    if row.state != state:
        row.state = state
        row.save(update_fields=["state"])
    return found


def check(*, environment: str, changes: Sequence[Changed], approved_request: int | None) -> None:
    """Raise ``NeedsApproval`` unless the changes may become a revision now.

    Called while the environment's row is locked. The caller claims that ``approved_request`` was
    approved. This checks that it was, and that its changes are the same to the last field.
    """
    if not needed_in(environment):
        return
    if approved_request is None:
        raise NeedsApproval
    row = ChangeRequest.objects.filter(pk=approved_request, environment=environment).first()
    if row is None or row.digest != digest(changes) or standing(row).missing:
        raise NeedsApproval
    scheduled = row.state == RequestState.APPLIED and row.schedule is not None
    if row.state != RequestState.APPROVED and not scheduled:
        raise NeedsApproval


def propose(
    given: Proposal,
    *,
    replaces_request: ChangeRequest | None = None,
    inside: Callable[[ChangeRequest], None] | None = None,
) -> ChangeRequest:
    """Store an edit as a change request, or as the next version of one. Raises ``InvalidEdit``.

    ``inside`` is called before the commit, for writes that belong to the same transaction.
    """
    different_things = sum(bool(different(change.before, change.after)) for change in given.changes)
    if not different_things and given.lowers_to is None:
        raise InvalidEdit({"change": ["It would change nothing."]})
    with transaction.atomic():
        if replaces_request is None:
            row, action = _new_request(given), "change_request.opened"
        else:
            row, action = _next_version(replaces_request, given), "change_request.rebased"
        first = given.audit_lines[0] if given.audit_lines else None
        row.base = given.base
        row.action = first.action if first else ""
        row.target = first.target_name[:200] if first else ""
        row.entries = [_entry(line) for line in given.audit_lines]
        row.changed = different_things
        row.digest = digest(given.changes)
        row.expires_at = timezone.now() + EXPIRES_AFTER
        row.state = RequestState.OPEN
        row.save()
        _store_changes(row, given.changes)
        note(row, action, given.actor, given.reason)
        if inside is not None:
            inside(row)
    opened.inc()
    return row


def _new_request(given: Proposal) -> ChangeRequest:
    """Return a row that is not saved yet."""
    person = person_of(given.actor)
    return ChangeRequest(
        environment=given.environment,
        reason=given.reason[:500],
        author=given.actor.name[:200],
        role=given.actor.role,
        origin=given.actor.origin,
        address=given.actor.address[:64],
        persons=[person] if person else [],
        whole=given.conflicts_with_any_change,
        restores=given.restores,
        reverts=given.reverts,
        due_at=given.due_at,
        document=given.document,
        needs=given.needs,
        title=given.title[:200],
        lowers_to=given.lowers_to,
    )


def _next_version(row: ChangeRequest, given: Proposal) -> ChangeRequest:
    """Drop the changes of the present version. Approvals of it no longer count."""
    row.changes.all().delete()
    row.version += 1
    row.persons = sorted({*row.persons, person_of(given.actor)} - {""})
    return row


def _store_changes(row: ChangeRequest, changes: Sequence[Changed]) -> None:
    with connection.cursor() as cursor:
        for part in in_parts(changes):
            cursor.execute(_STORE_CHANGES, [row.pk, encode([as_document(change) for change in part])])


def note(row: ChangeRequest, action: str, actor: Actor, reason: str, **more: Any) -> None:
    """Record in the audit what happens to a request, in the same transaction."""
    record(
        actor=actor,
        action=action,
        target_kind="change_request",
        target_name=str(row)[:200],
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
    """Return a hash of the changes that does not depend on their order."""
    rows = sorted((change.kind, change.name, as_document(change)) for change in changes)
    return sha256(msgspec.json.encode([row for *_, row in rows], order="sorted")).hexdigest()


def changes_of(row: ChangeRequest) -> list[Changed]:
    found = ProposedChange.objects.filter(request=row).order_by("pk")
    return [
        Changed(*values) for values in found.values_list("kind", "name", "before", "after").iterator(10_000)
    ]


def _entry(line: AuditLine) -> Fields:
    """Return the document a request stores for one audit entry.

    ``before`` and ``after`` of a thing are among the request's changes, so they are left out.
    """
    fields = {} if line.target_kind in _THINGS else {"before": line.before, "after": line.after}
    return {"action": line.action, "kind": line.target_kind, "name": line.target_name, **fields}
