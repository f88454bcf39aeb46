from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.audit.actor import COMMAND_LINE
from controlplane.errors import InvalidEdit, NotFound
from controlplane.repair.restores import raise_epoch
from fuseboard.contract.words import DEFAULT_ENVIRONMENT


class Command(BaseCommand):
    help = (
        "Run this after Postgres was restored from a backup: pods and Redis may have newer revisions, and"
        " accept older ones only in a new epoch."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", nargs="?", default=DEFAULT_ENVIRONMENT)
        parser.add_argument("--reason", required=True)
        parser.add_argument(
            "--ignore-pods", action="store_true", help="do not count revisions that pods report"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            head = raise_epoch(
                environment=options["environment"],
                reason=options["reason"],
                actor=COMMAND_LINE,
                ignore_pods=options["ignore_pods"],
            ).head
        except (redis.RedisError, NotFound, InvalidEdit) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{options['environment']} is at epoch {head.epoch}, revision {head.revision}.")
