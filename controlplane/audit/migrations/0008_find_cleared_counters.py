"""Finds the cleared counters of a month without reading the audit of that month."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("audit", "0007_find_entries_by_request")]

    operations = [
        migrations.AddIndex(
            "entry",
            models.Index(
                fields=["environment", "-at"],
                condition=models.Q(action="counter.cleared"),
                name="entry_of_cleared_counter",
            ),
        )
    ]
