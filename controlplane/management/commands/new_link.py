"""Let a person log in again without an admin: ``python manage.py new_link ann``."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from controlplane.accounts.people import remove_second_factor, send_new_link
from controlplane.audit.actor import COMMAND_LINE
from controlplane.management.edit_command import EditCommand
from controlplane.management.web_address import add_address, print_link


class Command(EditCommand):
    help = "Prints a link with which a user sets a new password. It works once, within an hour."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username")
        parser.add_argument(
            "--without-second-factor", action="store_true", help="also remove a lost second factor"
        )
        parser.add_argument("--reason", default="Requested on the command line.")
        add_address(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        who, reason = options["username"], options["reason"]
        if options["without_second_factor"]:
            remove_second_factor(username=who, reason=reason, actor=COMMAND_LINE)
        path = send_new_link(username=who, valid=timedelta(hours=1), reason=reason, actor=COMMAND_LINE)
        print_link(self, path, address=options["address"])
