"""Finds the cleared counters of a month without reading the audit of that month."""

from django.db import migrations, models

from controlplane.upgrades.operations import AddIndexConcurrently


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("audit", "0007_find_entries_by_request")]

    operations = [
        AddIndexConcurrently(
            "entry",
            models.Index(
                fields=["environment", "-at"],
                condition=models.Q(action="counter.cleared"),
                name="entry_of_cleared_counter",
            ),
        )
    ]
