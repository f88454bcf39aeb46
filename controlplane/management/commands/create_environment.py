from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.audit.actor import Actor
from controlplane.policies.edits import create_environment


class Command(BaseCommand):
    help = "Creates an environment with the usual tiers; does nothing when there is one already."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", nargs="?", default="production")

    def handle(self, *args: Any, **options: Any) -> None:
        revision = create_environment(
            environment=options["environment"],
            reason="Set up by the command line.",
            actor=Actor(name="command line", role="admin", origin="command"),
        )
        self.stdout.write(f"{options['environment']} is at revision {revision}.")
