"""After a restore of Postgres: notice that a pod or Redis is ahead, and continue in a new epoch."""

from django.db import connection
from django.db.models import F
from django.db.models.functions import Greatest

from controlplane.audit.actor import Actor
from controlplane.editing.revise import revise
from controlplane.fleet.models import Server
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment
from controlplane.publishing.models import Ahead
from controlplane.publishing.publish import NOTE_AHEAD, read_head
from controlplane.redis.scripts import PATIENT_S, limits
from fuseboard.contract.policy import ConfigHead


def who_is_ahead(environment: str) -> Ahead | None:
    """Pods and Redis that have a revision of this epoch that the database never made, or made again later."""
    row = environment_of(environment)
    return Ahead.objects.filter(environment=environment, epoch__gte=row.epoch).first()


def note_ahead(environment: str, *, epoch: int, revision: int, who: str) -> None:
    """Record it, if the database really does not have that revision."""
    with connection.cursor() as cursor:
        cursor.execute(NOTE_AHEAD, [epoch, revision, who[:100], environment, epoch, revision])


def raise_epoch(*, environment: str, reason: str, actor: Actor) -> ConfigHead:
    """Begin a new epoch: pods and Redis take the configuration of the database, even if it is older.

    Revisions continue above every known one, because overrides in Redis are compared by revision
    alone. Raises ``redis.RedisError`` when Redis does not answer.
    """
    row = environment_of(environment)
    stored = read_head(limits(deadline_s=PATIENT_S), environment)
    ahead = Ahead.objects.filter(environment=environment).first()
    servers = Server.objects.filter(environment=environment).values_list("epoch", "revision")
    known = [(row.epoch, row.revision), *servers.order_by("-epoch", "-revision")[:1]]
    known += [(one.epoch, one.revision) for one in (stored, ahead) if one is not None]
    Environment.objects.filter(pk=environment).update(
        epoch=Greatest(F("epoch"), max(epoch for epoch, _ in known)) + 1,
        revision=Greatest(F("revision"), max(revision for _, revision in known)),
    )
    with revise(environment=environment, actor=actor, reason=reason, needs_approval=False) as revision:
        revision.audit(
            "epoch.raised",
            target_kind="environment",
            target_name=environment,
            before={"epoch": row.epoch, "revision": row.revision},
            after={"epoch": revision.epoch, "revision": revision.number},
        )
    return ConfigHead(epoch=revision.epoch, revision=revision.number, hash="")
