"""A file of tiers, tenants and quotas: what it would change, and with ``--apply`` the change itself."""

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.audit.actor import Actor
from controlplane.editing.plans import PlanErrors, apply_plan, difference, read_plan
from controlplane.errors import EditConflict, EditError
from fuseboard.contract.words import DEFAULT_ENVIRONMENT


class Command(BaseCommand):
    help = (
        "Says what a YAML or CSV file of quotas would change; --apply changes it, as one revision."
        " Applied twice, it changes nothing the second time."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--environment", default=DEFAULT_ENVIRONMENT)
        parser.add_argument("--apply", action="store_true", help="without it, nothing is changed")
        parser.add_argument("--prune", action="store_true", help="remove what its sections do not name")
        parser.add_argument("--reason", default="Imported by the command line.")
        parser.add_argument("--expected-revision", type=int, help="refuse when it was edited after this one")

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
                actor=Actor(name="command line", role="admin", origin="command"),
                prune=prune,
                progress=self._progress,
            )
        except OSError as error:
            raise CommandError(f"{options['file']}: {error.strerror}") from error
        except PlanErrors as errors:
            raise CommandError(f"Nothing was changed.\n{errors}") from errors
        except EditConflict as conflict:
            raise CommandError(f"Nothing was changed: {conflict}. Look again.") from conflict
        except EditError as error:
            raise CommandError(f"Nothing was changed: {error}") from error
        self.stdout.write(f"Revision {revision}, {time.monotonic() - began:.1f} s.")

    def _progress(self, what: str, done: int, of: int) -> None:
        if of:
            self.stderr.write(f"{what}: {done:,} of {of:,}")
