"""Usage of language models, and its totals, as of release 0.2.0."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("ledger", "0001_store_usage"), ("ledger", "0002_sum_up_days"), ("ledger", "0003_invoice")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="UsageDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("calls", models.BigIntegerField()),
                ("fresh", models.BigIntegerField()),
                ("cached", models.BigIntegerField()),
                ("written", models.BigIntegerField()),
                ("output", models.BigIntegerField()),
                ("micro_usd", models.BigIntegerField()),
                ("wasted", models.BigIntegerField()),
                ("wasted_micro_usd", models.BigIntegerField()),
                ("estimated", models.BigIntegerField()),
                ("estimated_micro_usd", models.BigIntegerField()),
                ("unpriced", models.BigIntegerField()),
                ("saved_micro_usd", models.BigIntegerField()),
                ("environment", models.CharField(max_length=64)),
                ("day", models.DateField()),
                ("tenant", models.CharField(blank=True, max_length=200)),
                ("model", models.CharField(blank=True, max_length=200)),
                ("dependency", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "indexes": [models.Index(fields=["environment", "tenant", "day"], name="usage_day_by_tenant")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("environment", "day", "tenant", "model", "dependency"), name="usage_day_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("calls", models.BigIntegerField()),
                ("fresh", models.BigIntegerField()),
                ("cached", models.BigIntegerField()),
                ("written", models.BigIntegerField()),
                ("output", models.BigIntegerField()),
                ("micro_usd", models.BigIntegerField()),
                ("wasted", models.BigIntegerField()),
                ("wasted_micro_usd", models.BigIntegerField()),
                ("estimated", models.BigIntegerField()),
                ("estimated_micro_usd", models.BigIntegerField()),
                ("unpriced", models.BigIntegerField()),
                ("saved_micro_usd", models.BigIntegerField()),
                ("environment", models.CharField(max_length=64)),
                ("at", models.DateTimeField()),
                ("whose", models.SmallIntegerField(choices=[(1, "Service"), (2, "Tenant")])),
                ("name", models.CharField(blank=True, max_length=200)),
                ("model", models.CharField(blank=True, max_length=200)),
                ("dependency", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "indexes": [models.Index(fields=["at"], name="usage_hour_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("environment", "whose", "at", "name", "model", "dependency"), name="usage_hour_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageReceipt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("server", models.CharField(max_length=64)),
                ("boot", models.CharField(max_length=64)),
                ("number", models.BigIntegerField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "server", "boot"), name="usage_receipt_once")
                ]
            },
        ),
        migrations.CreateModel(
            name="UsageTotal",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("calls", models.BigIntegerField()),
                ("fresh", models.BigIntegerField()),
                ("cached", models.BigIntegerField()),
                ("written", models.BigIntegerField()),
                ("output", models.BigIntegerField()),
                ("micro_usd", models.BigIntegerField()),
                ("wasted", models.BigIntegerField()),
                ("wasted_micro_usd", models.BigIntegerField()),
                ("estimated", models.BigIntegerField()),
                ("estimated_micro_usd", models.BigIntegerField()),
                ("unpriced", models.BigIntegerField()),
                ("saved_micro_usd", models.BigIntegerField()),
                ("environment", models.CharField(max_length=64)),
                ("day", models.DateField()),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("environment", "day"), name="usage_total_once")]},
        ),
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("account", models.CharField(max_length=64)),
                ("month", models.DateField()),
                ("micro_usd", models.BigIntegerField()),
            ],
            options={
                "constraints": (
                    models.UniqueConstraint(fields=("environment", "account", "month"), name="invoice_once"),
                    models.CheckConstraint(
                        condition=models.Q(("micro_usd__range", (0, 9007199254740991))), name="invoice_range"
                    ),
                )
            },
        ),
    ]
