"""Run after FUSEBOARD_SECRET_KEY was replaced: ``python manage.py renew_secrets``."""

from typing import Any

from allauth.mfa.models import Authenticator
from django.core.management.base import BaseCommand
from django.db import transaction

from controlplane.accounts.mfa import renewed


class Command(BaseCommand):
    help = (
        "Encrypts the secrets of second factors with FUSEBOARD_SECRET_KEY, so that the keys in"
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
        self.stdout.write(f"{count} secret{'' if count == 1 else 's'} renewed.")
