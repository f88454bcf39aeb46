"""Weekly summaries, as of release 0.2.0."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    initial = True

    replaces = [("weekly", "0001_keep_weekly_summaries"), ("weekly", "0002_send_weekly_summaries")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="WeeklySummary",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("begins", models.DateField()),
                ("made_at", models.DateTimeField(db_default=Now())),
                ("sections", models.JSONField()),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "weekly summaries",
                "constraints": [models.UniqueConstraint(fields=("environment", "begins"), name="weekly_summary_once")],
            },
        ),
    ]
