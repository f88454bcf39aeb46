"""Write what a dump must have: ``python manage.py backup_manifest > fuseboard.json``, before ``pg_dump``."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from msgspec import json

from controlplane.installation import COMMAND
from controlplane.phrases import count
from controlplane.repair.backups import read_manifest, waiting_migrations


class Command(BaseCommand):
    help = (
        "Prints what the database has now, for verify_restore: revisions, heads of the audit, migrations,"
        " numbers of rows, and a fingerprint of FUSEBOARD_SECRET_KEY. It contains no secret. Run it just"
        " before pg_dump, and keep its output beside the dump."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if waiting := waiting_migrations():
            raise CommandError(
                f"The database lacks {count(waiting, 'migration')} of this release, so its tables cannot be"
                " read. Use the release that its processes run; 0.1.0 has no backup_manifest, so make the"
                f" dump alone. Or run {COMMAND} migrate first."
            )
        self.stdout.write(json.format(json.encode(read_manifest()), indent=2).decode())
