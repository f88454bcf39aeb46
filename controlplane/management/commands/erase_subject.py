from typing import Any

from django.core.management.base import CommandParser

from controlplane.erasure import KINDS, TENANT
from controlplane.management.edit_command import EditCommand
from controlplane.management.erasing import add_reason, erase_caller


class Command(EditCommand):
    help = "Erases the samples of refusals of one caller: an address, a login, or an API key."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment")
        parser.add_argument("kind", choices=[kind for kind in KINDS if kind != TENANT])
        parser.add_argument("value", help="as the service passes it; - to read it, so that no shell keeps it")
        add_reason(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(erase_caller(kind=options["kind"], value=options["value"], options=options))
