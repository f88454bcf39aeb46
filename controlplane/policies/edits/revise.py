"""One edit: a revision, its rows, its audit entry and its outbox entry, in one transaction.

The revision is taken by an UPDATE of the environment's row. Its lock is held until commit, so
revisions are committed in their order and a reader that sees 7 sees everything up to 7.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from controlplane.approvals import gate
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.acting import acting
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import NotFound
from controlplane.policies.history import Changed, store_revision
from controlplane.publishing.models import OutboxEntry
from controlplane.publishing.publish import publish_promptly

CHANNEL = "fuseboard_config"


@dataclass(frozen=True)
class Revision:
    """The revision being made; ``environment`` is the slug."""

    environment: str
    epoch: int
    number: int
    actor: Actor
    reason: str
    #: What it changes of the configuration, kept with it.
    changes: list[Changed] = field(default_factory=list)
    #: Action, kind and name of the target, before and after of each audit entry; the first is what
    #: the revision is known by.
    said: list[tuple[str, str, str, dict[str, Any] | None, dict[str, Any] | None]] = field(
        default_factory=list
    )

    def change(
        self, kind: str, name: str, *, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        """Keep what became of one thing; call it once for each."""
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
        self.said.append((action, target_kind, target_name, before, after))
        record(
            actor=self.actor,
            action=action,
            target_kind=target_kind,
            target_name=target_name,
            before=before,
            after=after,
            reason=self.reason,
            environment=self.environment,
            epoch=self.epoch,
            revision=self.number,
        )


@contextmanager
def revise(
    *,
    environment: str,
    actor: Actor,
    reason: str,
    reset: str = "",
    restores: int | None = None,
    waits: bool = True,
    whole: bool = False,
    approved: int | None = None,
    replaces: ChangeRequest | None = None,
) -> Iterator[Revision]:
    """Make one revision; everything inside is committed together with it, or nothing is.

    Where edits need approval, it is taken back at the end and ``gate.Proposed`` raised, unless
    ``approved`` is the change request that was approved for exactly this. ``waits=False`` is for
    what must never wait: hands on breakers, and what ends by itself. ``whole`` says that the edit
    was made from all of the configuration; ``replaces`` that it is a request made anew.

    ``reset`` names the dependency whose breaker Redis shall close once the revision is committed;
    ``restores`` the revision that a rollback brings back.
    """
    try:
        with transaction.atomic():
            acting(actor)
            epoch, number = take_revision(environment)
            revision = Revision(
                environment=environment, epoch=epoch, number=number, actor=actor, reason=reason
            )
            yield revision
            if waits:
                gate.check(environment=environment, changes=revision.changes, approved=approved)
            _conclude(revision, reset=reset, restores=restores)
    except gate.Waits:
        proposal = gate.Proposal(
            environment=environment,
            base=number - 1,
            actor=actor,
            reason=reason,
            said=revision.said,
            changes=revision.changes,
            whole=whole or restores is not None,
            restores=restores,
        )
        raise gate.Proposed(gate.propose(proposal, replaces=replaces)) from None


def _conclude(revision: Revision, *, reset: str, restores: int | None) -> None:
    action, _, target, *_ = revision.said[0] if revision.said else ("", "", "")
    environment = revision.environment
    store_revision(
        environment=environment,
        epoch=revision.epoch,
        number=revision.number,
        actor=revision.actor,
        action=action,
        target=target,
        reason=revision.reason,
        restores=restores,
        changes=revision.changes,
    )
    OutboxEntry.objects.create(
        environment=environment, epoch=revision.epoch, revision=revision.number, reset=reset
    )
    notify(CHANNEL, {"epoch": revision.epoch, "revision": revision.number})
    # No partial: Django names the function in its log when it fails, and a partial has no name.
    transaction.on_commit(lambda: publish_promptly(environment), robust=True)


def take_revision(environment: str) -> tuple[int, int]:
    """The environment's epoch and its next revision; other edits wait until this one is committed."""
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


def notify(channel: str, payload: dict[str, Any]) -> None:
    """Tell listening processes; delivered when the transaction commits, lost when nobody listens."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, json.dumps(payload)])
