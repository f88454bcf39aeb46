"""Compare a restored database with its manifest: ``python manage.py verify_restore fuseboard.json``."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from msgspec import MsgspecError, json

from controlplane.repair.backups import Manifest, verify_restore


class Command(BaseCommand):
    help = (
        "Compares the database with what backup_manifest printed before its dump, checks every entry of the"
        " audit, and prints what differs, what to do, and the next step."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("manifest", type=Path, help="the file with the output of backup_manifest")

    def handle(self, *args: Any, **options: Any) -> None:
        file = options["manifest"]
        try:
            manifest = json.decode(file.read_bytes(), type=Manifest)
        except (OSError, MsgspecError) as error:
            raise CommandError(
                f"{file} cannot be read as the output of backup_manifest: {error}. Name the file that was"
                " written beside the dump."
            ) from error
        found = verify_restore(manifest)
        for note in found.notes:
            self.stdout.write(note)
        if found.differences:
            raise CommandError("\n".join(f"DIFFERS {one}" for one in found.differences))
        self.stdout.write(
            f"The database has what the manifest of {manifest.taken_at:%Y-%m-%d %H:%M} UTC says."
        )
