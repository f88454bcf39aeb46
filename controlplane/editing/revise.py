"""One edit: a revision, its rows, its audit entry and its outbox entry, in one transaction.

An UPDATE of the environment's row takes the revision, and its lock lasts until the commit. So
revisions are committed in order, and a reader that sees revision 7 sees everything up to 7.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from controlplane.approvals import proposals
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.record import AuditLine, acting, record
from controlplane.editing.freeze import check_not_frozen
from controlplane.errors import NotFound
from controlplane.notify_channels import CONFIG
from controlplane.policies.history import Changed, store_revision
from controlplane.policies.models import Revision as RevisionRow
from controlplane.postgres import notify
from controlplane.publishing.models import OutboxEntry
from controlplane.publishing.publish import publish_promptly


@dataclass(frozen=True)
class Revision:
    """The revision being made; ``environment`` is the slug."""

    environment: str
    epoch: int
    number: int
    actor: Actor
    reason: str
    #: The changed things, stored with the revision.
    changes: list[Changed] = field(default_factory=list)
    #: One for each audit entry. The first one names the revision.
    audit_lines: list[AuditLine] = field(default_factory=list)

    def change(
        self, kind: str, name: str, *, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        """Store how one thing changes. Call it once per thing."""
        self.changes.append(Changed(kind=kind, name=name, before=before, after=after))

    def audit(
        self,
        action: str,
        *,
        target_kind: str,
        target_name: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        line = AuditLine(action, target_kind, target_name, before, after)
        self.audit_lines.append(line)
        record(
            actor=self.actor,
            **line._asdict(),
            reason=self.reason,
            environment=self.environment,
            epoch=self.epoch,
            revision=self.number,
        )

    def audit_change(self, action: str, change: Changed) -> None:
        """Audit an edit of one thing."""
        self.audit(
            action,
            target_kind=change.kind,
            target_name=change.name,
            before=change.before,
            after=change.after,
        )

    def audit_many(self, action: str, after: dict[str, Any]) -> None:
        """Audit an edit of many things, as one of the environment."""
        before = {"revision": self.number - 1}
        self.audit_change(action, Changed("environment", self.environment, before, after))


@contextmanager
def revise(
    *,
    environment: str,
    actor: Actor,
    reason: str,
    needs_approval: bool = True,
    approved_request: int | None = None,
    replaces_request: ChangeRequest | None = None,
    conflicts_with_any_change: bool = False,
    restores: int | None = None,
    reverts: int | None = None,
    resets_breaker: str = "",
    proposed: Callable[[ChangeRequest], None] | None = None,
) -> Iterator[Revision]:
    """Make one revision. Everything inside is committed with it, or nothing is.

    Where the environment requires approvals, the edit is rolled back at the end and stored as a
    change request, and ``proposals.Proposed`` is raised.

    ``needs_approval=False`` skips that: for overrides of breakers and for automatic expiries. These
    are also possible while edits are frozen; every other edit raises ``EditsFrozen``.
    ``approved_request`` is the change request that was approved for exactly this edit.
    ``replaces_request`` is the request that is being rebased: the edit becomes its next version.
    ``conflicts_with_any_change`` is for an edit that was computed from the whole configuration.
    As a request it conflicts with every later change, not only with changes of the same things.

    ``restores`` is the revision that a rollback brings back, and ``reverts`` the one that a revert
    undoes. ``resets_breaker`` names the dependency whose breaker is closed in Redis after the commit.
    ``proposed`` is called with a new change request before it is committed.
    """
    try:
        with transaction.atomic():
            acting(actor)
            epoch, number = take_revision(environment)
            if needs_approval:
                check_not_frozen(environment)
            revision = Revision(environment, epoch, number, actor, reason)
            yield revision
            if needs_approval:
                proposals.check(
                    environment=environment, changes=revision.changes, approved_request=approved_request
                )
            _conclude(revision, resets_breaker=resets_breaker, restores=restores, reverts=reverts)
    except proposals.NeedsApproval:
        proposal = proposals.Proposal(
            environment=environment,
            base=number - 1,
            actor=actor,
            reason=reason,
            audit_lines=revision.audit_lines,
            changes=revision.changes,
            conflicts_with_any_change=conflicts_with_any_change or restores is not None,
            restores=restores,
            reverts=reverts,
        )
        request = proposals.propose(proposal, replaces_request=replaces_request, inside=proposed)
        raise proposals.Proposed(request) from None


def _conclude(revision: Revision, *, resets_breaker: str, restores: int | None, reverts: int | None) -> None:
    """Store the revision, and have it published after the commit."""
    first = revision.audit_lines[0] if revision.audit_lines else None
    environment = revision.environment
    row = RevisionRow(
        environment=environment,
        epoch=revision.epoch,
        number=revision.number,
        actor=revision.actor.name[:200],
        role=revision.actor.role,
        origin=revision.actor.origin,
        action=first.action if first else "",
        target=first.target_name[:200] if first else "",
        reason=revision.reason[:500],
        changed=len(revision.changes),
        restores=restores,
        reverts=reverts,
    )
    store_revision(row, revision.changes)
    OutboxEntry.objects.create(
        environment=environment, epoch=revision.epoch, revision=revision.number, reset=resets_breaker
    )
    notify(CONFIG, {"epoch": revision.epoch, "revision": revision.number})
    # Not a partial: Django logs the name of a function that fails, and a partial has none.
    transaction.on_commit(lambda: publish_promptly(environment), robust=True)


def take_revision(environment: str) -> tuple[int, int]:
    """Return the environment's epoch and its next revision. Other edits wait until this one commits."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE policies_environment SET revision = revision + 1 WHERE slug = %s"
            " RETURNING epoch, revision",
            [environment],
        )
        row = cursor.fetchone()
    if row is None:
        raise NotFound("environment", environment)
    epoch, revision = row
    return int(epoch), int(revision)
