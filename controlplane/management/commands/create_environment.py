from typing import Any

from django.core.management.base import CommandParser

from controlplane.audit.actor import COMMAND_LINE
from controlplane.editing.edits import create_environment
from controlplane.editing.plans import copy_configuration
from controlplane.management.edit_command import EditCommand
from fuseboard.contract.words import DEFAULT_ENVIRONMENT


class Command(EditCommand):
    help = "Creates an environment with the default tiers; does nothing if it exists."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment", nargs="?", default=DEFAULT_ENVIRONMENT)
        parser.add_argument(
            "--like", help="copy tiers, dependencies, limits, budgets and timings of this environment"
        )
        parser.add_argument("--tenants", action="store_true", help="with --like: also copy its tenants")

    def handle(self, *args: Any, **options: Any) -> None:
        common: dict[str, Any] = {
            "environment": options["environment"],
            "reason": "Created on the command line.",
            "actor": COMMAND_LINE,
        }
        revision = create_environment(**common)
        if options["like"]:
            revision = copy_configuration(source=options["like"], with_tenants=options["tenants"], **common)
        self.stdout.write(f"{options['environment']} is at revision {revision}.")
