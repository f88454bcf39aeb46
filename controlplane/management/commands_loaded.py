"""Django's commands, loaded without a search for garbage."""

from django.core.management import ManagementUtility
from django.core.management.base import BaseCommand

from controlplane import loading


class Commands(ManagementUtility):
    def execute(self) -> None:
        loading.begin()
        super().execute()

    def fetch_command(self, subcommand: str) -> BaseCommand:
        """Django and the applications are loaded before a command is, which is the last."""
        try:
            return super().fetch_command(subcommand)
        finally:
            loading.end()
