"""A token for the pods of one environment: ``python manage.py create_agent_token shop``."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.accounts.tokens import create_agent_token
from controlplane.audit.actor import COMMAND_LINE
from controlplane.management.edit_command import EditCommand
from fuseboard.contract.words import DEFAULT_ENVIRONMENT


class Command(EditCommand):
    help = "Prints a new token for agents. It is shown once; only its hash is stored."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what it is for; shown in the list of tokens")
        parser.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
        parser.add_argument("--days", type=int, default=90, help="valid for this long (default: 90)")
        parser.add_argument("--service", default="", help="only pods of this service can use it")
        parser.add_argument(
            "--name-prefix", default="", help="only pods whose names begin like this can use it"
        )
        parser.add_argument("--reason", default="Created on the command line.")

    def handle(self, *args: Any, **options: Any) -> None:
        token = create_agent_token(
            environment=options["environment"],
            name=options["name"],
            expires_at=timezone.now() + timedelta(days=options["days"]),
            reason=options["reason"],
            service=options["service"],
            name_prefix=options["name_prefix"],
            actor=COMMAND_LINE,
        )
        self.stdout.write(token)
