"""Samples of refusals, and lists of the most frequent, as of release 0.2.0."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("refusals", "0001_remember_services"),
        ("refusals", "0002_keep_samples"),
        ("refusals", "0003_keep_traces"),
        ("refusals", "0004_store_top_lists"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="RefusalService",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("service", models.CharField(max_length=64)),
                ("last_on", models.DateField()),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("environment", "service"), name="refusal_service_once")]
            },
        ),
        migrations.CreateModel(
            name="DigestKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("on", models.DateField()),
                ("key", models.BinaryField()),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("environment", "on"), name="digest_key_once")]},
        ),
        migrations.CreateModel(
            name="RefusalSample",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("at", models.DateTimeField()),
                ("service", models.CharField(max_length=64)),
                ("server", models.CharField(max_length=64)),
                ("rule", models.CharField(blank=True, max_length=300)),
                ("dependency", models.CharField(blank=True, max_length=64)),
                ("reason", models.CharField(max_length=32)),
                ("mode", models.CharField(max_length=16)),
                ("tenant", models.CharField(blank=True, max_length=200)),
                ("endpoint", models.CharField(blank=True, max_length=120)),
                ("revision", models.BigIntegerField()),
                ("retry_after_ms", models.BigIntegerField()),
                ("ip", models.CharField(blank=True, max_length=16)),
                ("user", models.CharField(blank=True, max_length=16)),
                ("api_key", models.CharField(blank=True, max_length=16)),
                ("weight", models.FloatField()),
                ("trace", models.CharField(blank=True, db_default="", default="", max_length=32)),
            ],
            options={"indexes": [models.Index(fields=["environment", "at"], name="refusal_sample_by_time")]},
        ),
        migrations.CreateModel(
            name="TopList",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("kind", models.SmallIntegerField()),
                ("grain_s", models.IntegerField()),
                ("at", models.DateTimeField()),
                ("writer", models.IntegerField()),
                ("names", ArrayField(base_field=models.TextField(), size=None)),
                ("counts", ArrayField(base_field=models.FloatField(), size=None)),
                ("total", models.FloatField()),
                ("short_by", models.FloatField()),
            ],
            options={
                "indexes": [models.Index(fields=["environment", "grain_s", "at"], name="refusal_top_list_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("environment", "kind", "grain_s", "at", "writer"), name="refusal_top_list_once"
                    )
                ],
            },
        ),
    ]
