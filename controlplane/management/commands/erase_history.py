from typing import Any

from django.core.management.base import CommandParser

from controlplane.erasure import TENANT
from controlplane.management.edit_command import EditCommand
from controlplane.management.erasing import add_reason, erase_caller


class Command(EditCommand):
    help = (
        "Erases what is stored of a tenant: its charts, the demand of what-if, samples of its refusals, saved"
        " views that filter by it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment")
        parser.add_argument("tenant", help="its key, or the caller that is not registered; - to read it")
        add_reason(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(erase_caller(kind=TENANT, value=options["tenant"], options=options))
