"""Write what a dump must have: ``python manage.py backup_manifest > fuseboard.json``, before ``pg_dump``."""

from typing import Any

from django.core.management.base import BaseCommand
from msgspec import json

from controlplane.repair.backups import read_manifest


class Command(BaseCommand):
    help = (
        "Prints what the database has now, for verify_restore: revisions, heads of the audit, migrations,"
        " numbers of rows, and a fingerprint of FUSEBOARD_SECRET_KEY. It contains no secret. Run it just"
        " before pg_dump, and keep its output beside the dump."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.format(json.encode(read_manifest()), indent=2).decode())
