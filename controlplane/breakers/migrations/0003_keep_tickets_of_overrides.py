"""The ticket that an override belongs to."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("breakers", "0002_keep_figures_of_trips")]

    operations = [
        migrations.AddField(
            "override", "ticket", models.CharField(blank=True, db_default="", default="", max_length=300)
        )
    ]
