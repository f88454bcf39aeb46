from typing import Any

from django.core.management.base import CommandParser

from controlplane.approvals.models import MAX_NEEDED
from controlplane.approvals.rules import put_needed, recount
from controlplane.audit.actor import COMMAND_LINE
from controlplane.management.edit_command import EditCommand
from controlplane.policies.document import environment_of
from controlplane.validation import check_reason


class Command(EditCommand):
    help = (
        "Sets how many approvals an edit needs, immediately and without approval: for when no approver is"
        " left. It is logged as a warning, and in the audit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment")
        parser.add_argument("needed", type=int, choices=range(MAX_NEEDED + 1))
        parser.add_argument("--reason", required=True, help="why; recorded in the audit log")

    def handle(self, *args: Any, **options: Any) -> None:
        check_reason(options["reason"])
        put_needed(
            environment=environment_of(options["environment"]).slug,
            needed=options["needed"],
            reason=options["reason"],
            actor=COMMAND_LINE,
        )
        recount(options["environment"])
        self.stdout.write(f"Edits of {options['environment']} need {options['needed']} approvals.")
