"""Run after FUSEBOARD_SECRET_KEY was replaced: ``python manage.py renew_secrets``."""

from typing import Any

from allauth.mfa.models import Authenticator
from django.core.management.base import BaseCommand
from django.db import connection, transaction

from controlplane.accounts.mfa import renewed
from controlplane.encryption import EncryptedUrl


class Command(BaseCommand):
    help = (
        "Encrypts second factors and URLs of receivers with FUSEBOARD_SECRET_KEY, so that the keys in"
        " FUSEBOARD_SECRET_KEY_FALLBACKS can be removed."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        count = 0
        with transaction.atomic():
            for row in Authenticator.objects.select_for_update().order_by("pk"):
                secrets = {name: renewed(row.data[name]) for name in ("secret", "seed") if name in row.data}
                row.data |= secrets
                row.save(update_fields=["data"])
                count += bool(secrets)
            count += _receivers()
        self.stdout.write(f"{count} secret{'' if count == 1 else 's'} renewed.")


def _receivers() -> int:
    count = 0
    with connection.cursor() as cursor:
        # The model would show the decrypted form.
        cursor.execute("SELECT id, url FROM alerts_receiver ORDER BY id FOR UPDATE")
        for pk, stored in cursor.fetchall():
            if (url := EncryptedUrl.renewed(stored)) is not None:
                cursor.execute("UPDATE alerts_receiver SET url = %s WHERE id = %s", [url, pk])
                count += 1
    return count
