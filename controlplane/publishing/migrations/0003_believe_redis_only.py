"""Forget what pods alone reported: it stops publishing no longer. A pod that still reports it is an alert."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("publishing", "0002_note_who_is_ahead")]

    operations = [
        migrations.RunSQL(
            "DELETE FROM publishing_ahead WHERE who <> 'Redis'", reverse_sql=migrations.RunSQL.noop
        )
    ]
