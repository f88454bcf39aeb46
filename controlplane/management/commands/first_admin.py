"""Create the first login of an installation: ``python manage.py first_admin``."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from controlplane.accounts.models import Role, User
from controlplane.accounts.people import invite_person, send_new_link
from controlplane.audit.actor import COMMAND_LINE
from controlplane.installation import COMMAND
from controlplane.management.edit_command import EditCommand
from controlplane.management.web_address import add_address, print_link

_REASON = "The first admin of this installation."


class Command(EditCommand):
    help = "Prints a link with which the first admin sets a password. It works once, within an hour."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", default="admin", help="username of the admin (default: admin)")
        parser.add_argument("--minutes", type=int, default=60, help="valid for this long (default: 60)")
        add_address(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        valid = timedelta(minutes=options["minutes"])
        with transaction.atomic():
            path = _link(options["name"], valid)
        self.stderr.write(f"Valid once, for {options['minutes']} minutes, while `{COMMAND} web` runs:")
        print_link(self, path, address=options["address"])


def _link(name: str, valid: timedelta) -> str:
    """Print a new link; it replaces an unused one, and never creates a second admin."""
    for admin in User.objects.select_for_update().filter(role=Role.ADMIN, is_active=True):
        if admin.has_usable_password() or admin.last_login is not None or admin.username != name:
            raise CommandError(
                f"{admin.username} is already an admin and can invite others on the People page."
                f" If no admin can log in: {COMMAND} new_link <name>."
            )
        return send_new_link(username=name, valid=valid, reason=_REASON, actor=COMMAND_LINE)
    return invite_person(
        username=name, role=Role.ADMIN.value, valid=valid, reason=_REASON, actor=COMMAND_LINE
    )
