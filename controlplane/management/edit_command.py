"""The base of commands that edit."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.errors import EditError


class EditCommand(BaseCommand):
    """A refused edit ends the command with its message, and without a stack trace."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except EditError as error:
            raise CommandError(str(error)) from error
