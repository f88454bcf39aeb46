"""Leave out an audit entry that the SIEM refuses for ever: ``python manage.py skip_audit_entry 4711``."""

from typing import Any

from django.core.management.base import CommandParser

from controlplane.audit.actor import COMMAND_LINE
from controlplane.audit_export.skip import skip_refused
from controlplane.audit_export.waiting import WEBHOOK
from controlplane.management.edit_command import EditCommand
from fuseboard.contract.words import DEFAULT_ENVIRONMENT


class Command(EditCommand):
    help = (
        "Leaves out the audit entry that the target of the export refuses, so that later entries arrive. The"
        " export gets an entry with its number and hash instead."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("sequence", type=int, help="the number that the alert names")
        parser.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
        parser.add_argument("--reason", required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        skip_refused(
            target=WEBHOOK,
            environment=options["environment"],
            sequence=options["sequence"],
            reason=options["reason"],
            actor=COMMAND_LINE,
        )
        entry = f"Entry {options['sequence']} of {options['environment']}"
        self.stdout.write(f"{entry} is not exported. An audit entry says so, and is exported.")
