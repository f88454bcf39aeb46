"""Import tiers, tenants and quotas from a file: preview the changes, or make them with ``--apply``."""

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.audit.actor import COMMAND_LINE
from controlplane.editing.plans import PlanErrors, apply_plan, difference, read_plan
from controlplane.errors import EditConflict, EditError
from fuseboard.contract.words import DEFAULT_ENVIRONMENT


class Command(BaseCommand):
    help = (
        "Shows what a YAML or CSV file of quotas would change; --apply makes the changes as one revision."
        " Applying the same file again changes nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
        parser.add_argument(
            "--apply", action="store_true", help="make the changes; without it, only show them"
        )
        parser.add_argument(
            "--prune", action="store_true", help="remove what is not in the file, within the sections it has"
        )
        parser.add_argument("--reason", default="Imported on the command line.")
        parser.add_argument(
            "--expected-revision", type=int, help="refuse if there is a newer revision than this one"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        began = time.monotonic()
        environment, prune = options["environment"], options["prune"]
        try:
            with options["file"].open("rb") as stream:
                plan = read_plan(stream)
            self.stderr.write(f"{len(plan):,} rows read in {time.monotonic() - began:.1f} s")
            found = difference(environment, plan, prune=prune)
            self.stdout.write(found.to_text(), ending="")
            if not options["apply"] or not found:
                return
            revision = apply_plan(
                environment=environment,
                plan=plan,
                expected_revision=options["expected_revision"],
                reason=options["reason"],
                actor=COMMAND_LINE,
                prune=prune,
                progress=self._progress,
            )
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from error
        except PlanErrors as errors:
            raise CommandError(f"Nothing was changed.\n{errors}") from errors
        except EditConflict as conflict:
            raise CommandError(f"Nothing was changed: {conflict}. Check the changes again.") from conflict
        except EditError as error:
            raise CommandError(f"Nothing was changed: {error}") from error
        self.stdout.write(f"Revision {revision}, {time.monotonic() - began:.1f} s.")

    def _progress(self, what: str, done: int, of: int) -> None:
        if of:
            self.stderr.write(f"{what}: {done:,} of {of:,}")
