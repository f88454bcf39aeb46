"""The base of commands that edit."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.checks import CONFIGURATION
from controlplane.errors import EditError


class EditCommand(BaseCommand):
    """A refused edit ends the command with its message, and without a stack trace."""

    #: The other checks load every page: half the time of a short command.
    requires_system_checks = (CONFIGURATION,)

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except EditError as error:
            raise CommandError(str(error)) from error
