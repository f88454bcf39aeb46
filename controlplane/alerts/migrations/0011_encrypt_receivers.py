from collections.abc import Callable
from typing import Any

from django.db import migrations

import controlplane.encryption
from controlplane.encryption import EncryptedUrl


def _rewrite(schema_editor: Any, change: Callable[[str], str]) -> None:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT id, url FROM alerts_receiver ORDER BY id")
        for pk, url in cursor.fetchall():
            cursor.execute("UPDATE alerts_receiver SET url = %s WHERE id = %s", [change(url), pk])


def encrypt(apps: Any, schema_editor: Any) -> None:
    _rewrite(schema_editor, EncryptedUrl().get_prep_value)


def decrypt(apps: Any, schema_editor: Any) -> None:
    # One that cannot be read is empty.
    _rewrite(schema_editor, lambda stored: (EncryptedUrl().from_db_value(stored) or "")[:2_000])


class Migration(migrations.Migration):
    dependencies = [("alerts", "0010_follow_incidents")]

    operations = [
        migrations.AlterField("receiver", "url", controlplane.encryption.EncryptedUrl()),
        migrations.RunPython(encrypt, decrypt),
    ]
