"""After a restore of Postgres: notice that Redis is ahead, and continue in a new epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest

from controlplane.audit.actor import Actor
from controlplane.audit.record import acting
from controlplane.editing.revise import revise
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment
from controlplane.publishing.models import Ahead
from controlplane.publishing.publish import read_head
from controlplane.publishing.unknown_revisions import UnknownRevision, largest_near, unknown_revisions
from controlplane.redis.scripts import PATIENT_S, limits
from controlplane.validation import check_reason
from fuseboard.contract.policy import ConfigHead


@dataclass(frozen=True)
class Raised:
    """The head of a new epoch, and the pods whose revisions it does not continue above."""

    head: ConfigHead
    ignored: Sequence[UnknownRevision]


def raise_epoch(*, environment: str, reason: str, actor: Actor, ignore_pods: bool = False) -> Raised:
    """Begin a new epoch: pods and Redis take the configuration of the database, even if it is older.

    Revisions continue above every known one, because overrides in Redis are compared by revision
    alone. Of pods only those near the head count, and none with ``ignore_pods``, because a token of a pod
    can report any number. Raises ``InvalidEdit`` without a reason, and ``redis.RedisError`` when Redis does
    not answer.
    """
    check_reason(reason)
    stored = read_head(limits(deadline_s=PATIENT_S), environment)
    with transaction.atomic():
        acting(actor)
        row = environment_of(environment)
        ahead = Ahead.objects.of(environment).first()
        known = [(row.epoch, row.revision)]
        known += [(one.epoch, one.revision) for one in (stored, ahead) if one is not None]
        trusted = _largest(known)
        # The claims are for display only, so at most some of them.
        claims = unknown_revisions(environment)
        near = None if ignore_pods else largest_near(environment, trusted)
        head = trusted if near is None else _largest([*known, near])
        Environment.objects.filter(pk=environment).update(
            epoch=Greatest(F("epoch"), head.epoch) + 1, revision=Greatest(F("revision"), head.revision)
        )
        with revise(environment=environment, actor=actor, reason=reason, needs_approval=False) as revision:
            revision.audit(
                "epoch.raised",
                target_kind="environment",
                target_name=environment,
                before={"epoch": row.epoch, "revision": row.revision},
                after={"epoch": revision.epoch, "revision": revision.number},
            )
    return Raised(
        head=ConfigHead(epoch=revision.epoch, revision=revision.number, hash=""),
        ignored=[one for one in claims if ignore_pods or not one.is_near(trusted)],
    )


def _largest(known: Sequence[tuple[int, int]]) -> ConfigHead:
    """Above each of them; the two parts can come from different ones."""
    epochs, revisions = zip(*known, strict=True)
    return ConfigHead(epoch=max(epochs), revision=max(revisions), hash="")
