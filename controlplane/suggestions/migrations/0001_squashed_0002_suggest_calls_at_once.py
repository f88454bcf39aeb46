"""Suggested limits, as of release 0.2.0."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("suggestions", "0001_store_suggestions"), ("suggestions", "0002_suggest_calls_at_once")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Following",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("dependency", models.CharField(max_length=64)),
                ("limit", models.CharField(max_length=64)),
                ("began_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("number", models.BigIntegerField()),
                ("at_floor", models.BooleanField(default=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "dependency", "limit"), name="following_once")
                ]
            },
        ),
        migrations.CreateModel(
            name="Suggestion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("dependency", models.CharField(max_length=64)),
                ("limit", models.CharField(max_length=64)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("limit", "lower limit"),
                            ("too_low", "higher limit"),
                            ("slots", "fewer calls at once"),
                            ("others", "others use the key"),
                            ("refused", "refused calls"),
                        ],
                        max_length=16,
                    ),
                ),
                ("number", models.BigIntegerField()),
                ("configured", models.BigIntegerField()),
                ("evidence", models.CharField(max_length=500)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("declined_number", models.BigIntegerField(null=True)),
                ("declined_by", models.CharField(blank=True, max_length=200)),
                ("declined_reason", models.CharField(blank=True, max_length=500)),
                ("declined_at", models.DateTimeField(null=True)),
                ("algorithm", models.CharField(db_default="", default="", max_length=32)),
                ("window_s", models.IntegerField(db_default=0, default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("environment", "dependency", "limit", "kind"), name="suggestion_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["limit", "too_low", "slots", "others", "refused"])),
                        name="suggestion_kind_known",
                    ),
                ]
            },
        ),
    ]
