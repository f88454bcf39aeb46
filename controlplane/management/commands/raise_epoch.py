from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.db.models import F

from controlplane.audit.acting import acting
from controlplane.audit.actor import Actor
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment
from controlplane.publishing.publish import read_head
from controlplane.publishing.revisions import revise
from controlplane.publishing.store import PATIENT_S, limits


class Command(BaseCommand):
    help = (
        "Run after Postgres was restored from a backup: servers and Redis may know revisions that are"
        " lost, and take up older ones only under a new epoch."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", nargs="?", default="production")
        parser.add_argument("--reason", required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        row = environment_of(options["environment"])
        known = read_head(limits(deadline_s=PATIENT_S), row.slug)
        lost = max(known.revision if known else 0, row.revision)
        # Revisions go on above the lost ones: holds in Redis are compared by them alone.
        actor = Actor(name="command line", role="admin", origin="command")
        with transaction.atomic():
            acting(actor)
            Environment.objects.filter(pk=row.pk).update(epoch=F("epoch") + 1, revision=lost)
        with revise(environment=row.slug, actor=actor, reason=options["reason"]) as revision:
            revision.audit(
                "epoch.raised",
                target_kind="environment",
                target_name=row.slug,
                before={"epoch": row.epoch, "revision": row.revision},
                after={"epoch": revision.epoch, "revision": revision.number},
            )
        self.stdout.write(f"{row.slug} is at epoch {revision.epoch}, revision {revision.number}.")
