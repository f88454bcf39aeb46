"""Run after FUSEBOARD_SECRET_KEY was replaced: ``python manage.py renew_secrets``."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction

from controlplane.accounts.second_factors import renewed, secrets_of
from controlplane.encryption import EncryptedUrl
from controlplane.phrases import count


class Command(BaseCommand):
    help = (
        "Encrypts second factors and URLs of receivers with FUSEBOARD_SECRET_KEY. Sessions, kept answers,"
        " jobs of sealed backlogs and refusal tokens still need the keys in FUSEBOARD_SECRET_KEY_FALLBACKS."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            done = Counter((*_second_factors(), *_receivers()))
        self.stdout.write(f"{count(done[True], 'secret')} renewed.")
        if done[False]:
            raise CommandError(
                f"{count(done[False], 'secret')} cannot be read: the key of that time is neither"
                " FUSEBOARD_SECRET_KEY nor one of FUSEBOARD_SECRET_KEY_FALLBACKS. Add it and run this again;"
                " if it is lost, follow the runbook secret-key-lost."
            )
        if settings.SECRET_KEY_FALLBACKS:
            self.stdout.write(
                "Keep the keys in FUSEBOARD_SECRET_KEY_FALLBACKS until nothing needs them: sessions, kept"
                " answers, jobs of sealed backlogs and refusal tokens are not renewed. docs/deployment.md,"
                " Rotating secrets, says how long each of them lasts."
            )


def _second_factors() -> Iterator[bool]:
    """Yield whether the secrets of each one could be renewed."""
    for row in Authenticator.objects.select_for_update().order_by("pk"):
        if not (stored := secrets_of(row.data)):
            continue
        fresh = {name: renewed(secret) for name, secret in stored.items()}
        if readable := None not in fresh.values():
            row.data |= fresh
            row.save(update_fields=["data"])
        yield readable


def _receivers() -> Iterator[bool]:
    """Yield whether the URL of each one could be renewed."""
    with connection.cursor() as cursor:
        # The model would show the decrypted form.
        cursor.execute("SELECT id, url FROM alerts_receiver ORDER BY id FOR UPDATE")
        for pk, stored in cursor.fetchall():
            if (url := EncryptedUrl.renewed(stored)) is not None:
                cursor.execute("UPDATE alerts_receiver SET url = %s WHERE id = %s", [url, pk])
            yield url is not None
