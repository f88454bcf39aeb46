"""Reports of pods no longer stop publishing, so delete those that are stored."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("publishing", "0002_note_who_is_ahead")]

    operations = [
        migrations.RunSQL(
            "DELETE FROM publishing_ahead WHERE who <> 'Redis'", reverse_sql=migrations.RunSQL.noop
        )
    ]
