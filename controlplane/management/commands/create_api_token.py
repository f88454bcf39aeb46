from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from controlplane.accounts.models import ApiToken, Role
from controlplane.accounts.tokens import create_api_token
from controlplane.audit.actor import COMMAND_LINE
from controlplane.management.edit_command import EditCommand


class Command(EditCommand):
    help = "Prints a new token for the API. It is shown once; only its hash is stored."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="what it is for")
        parser.add_argument("--role", choices=ApiToken.ROLES, default=Role.VIEWER.value)
        parser.add_argument(
            "--environment", default="", help="valid in this environment only (default: in all)"
        )
        parser.add_argument("--days", type=int, default=90, help="valid for this long (default: 90)")
        parser.add_argument("--reason", default="Created on the command line.")

    def handle(self, *args: Any, **options: Any) -> None:
        token = create_api_token(
            name=options["name"],
            role=options["role"],
            environment=options["environment"],
            expires_at=timezone.now() + timedelta(days=options["days"]),
            reason=options["reason"],
            actor=COMMAND_LINE,
        )
        self.stdout.write(token)
