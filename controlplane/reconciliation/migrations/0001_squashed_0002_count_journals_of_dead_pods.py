"""What pods allowed alone, as of release 0.2.0."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("reconciliation", "0001_count_what_pods_allow"),
        ("reconciliation", "0002_count_journals_of_dead_pods"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Copying",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("cursors", models.JSONField(default=dict)),
                ("began_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("running_since", models.DateTimeField(blank=True, null=True)),
                ("problem", models.CharField(blank=True, default="", max_length=500)),
                ("full", models.JSONField(default=list)),
            ],
        ),
        migrations.CreateModel(
            name="AllowedAlone",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("domain", models.CharField(max_length=128)),
                ("field", models.CharField(max_length=300)),
                ("counter", models.CharField(max_length=300)),
                ("hash", models.CharField(blank=True, max_length=64)),
                ("value", models.BigIntegerField()),
                ("amount", models.BigIntegerField()),
                ("start", models.DateTimeField(blank=True, null=True)),
                ("length_s", models.IntegerField(default=0)),
                ("shadow", models.BooleanField(default=False)),
                ("tenant", models.CharField(blank=True, max_length=200)),
                ("dependency", models.CharField(blank=True, max_length=64)),
                ("rule", models.CharField(max_length=64)),
                ("measure", models.CharField(blank=True, max_length=64)),
                ("capacity", models.BigIntegerField(blank=True, null=True)),
                ("shorter", models.BooleanField(default=False)),
                ("divided", models.BooleanField(default=False)),
                ("first_at", models.DateTimeField(db_default=Now())),
                ("copied_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "verbose_name_plural": "allowed alone",
                "indexes": [
                    models.Index(fields=["environment", "start"], name="allowed_alone_by_time"),
                    models.Index(fields=["copied_at"], name="allowed_alone_by_copy"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "domain", "field"), name="allowed_alone_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="LostCounts",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("server", models.CharField(max_length=64)),
                ("boot", models.CharField(max_length=64)),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("uncounted", models.BigIntegerField(default=0)),
                ("unreported", models.BigIntegerField(default=0)),
                ("adopted", models.BigIntegerField(db_default=0, default=0)),
                ("expired", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name_plural": "lost counts",
                "indexes": [models.Index(fields=["environment", "until"], name="lost_counts_by_time")],
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "server", "boot"), name="lost_counts_once")
                ],
            },
        ),
    ]
