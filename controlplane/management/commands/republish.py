from collections.abc import Sequence
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.audit.actor import COMMAND_LINE
from controlplane.breakers.enforce import enforce
from controlplane.errors import InvalidEdit, NotFound
from controlplane.publishing.publish import PublishError, republish
from controlplane.publishing.unknown_revisions import UnknownRevision
from controlplane.redis.scripts import PATIENT_S
from controlplane.repair.restores import raise_epoch
from fuseboard.contract.words import DEFAULT_ENVIRONMENT


class Command(BaseCommand):
    help = "Writes the whole configuration and every override to Redis again; --new-epoch after a restore."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", nargs="?", default=DEFAULT_ENVIRONMENT)
        parser.add_argument(
            "--new-epoch",
            action="store_true",
            help="Postgres was restored: let pods take its configuration although they have newer revisions",
        )
        parser.add_argument(
            "--reason", default="", help="required with --new-epoch; recorded in the audit log"
        )

        parser.add_argument(
            "--ignore-pods",
            action="store_true",
            help="with --new-epoch: do not count revisions that pods report, because one of them lies",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        environment = options["environment"]
        if options["new_epoch"] and not options["reason"].strip():
            raise CommandError("--new-epoch needs --reason: it stands in the audit log.")
        if options["ignore_pods"] and not options["new_epoch"]:
            raise CommandError("--ignore-pods is for --new-epoch: only a new epoch counts what pods report.")
        ignored: Sequence[UnknownRevision] = ()
        try:
            if options["new_epoch"]:
                ignored = raise_epoch(
                    environment=environment,
                    reason=options["reason"],
                    actor=COMMAND_LINE,
                    ignore_pods=options["ignore_pods"],
                ).ignored
            head = republish(environment)
            held = enforce(environment, deadline_s=PATIENT_S)
        except (redis.RedisError, PublishError, NotFound, InvalidEdit) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{environment} is at epoch {head.epoch}, revision {head.revision} in Redis;"
            f" {len(held)} overrides were repaired."
        )
        for one in ignored:
            self.stdout.write(
                f"Ignored: {one.server} reports {one.epoch}.{one.revision}. If it keeps this revision,"
                " restart it without its copy on disk, or revoke its token."
            )
