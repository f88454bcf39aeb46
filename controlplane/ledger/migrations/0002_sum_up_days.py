from django.db import migrations, models

from controlplane.upgrades.operations import Long

_FILL = """
    INSERT INTO ledger_usagetotal (environment, day, calls, fresh, cached, written, output,
        micro_usd, wasted, wasted_micro_usd, estimated, estimated_micro_usd, unpriced, saved_micro_usd)
    SELECT environment, day, sum(calls), sum(fresh), sum(cached), sum(written), sum(output),
        sum(micro_usd), sum(wasted), sum(wasted_micro_usd), sum(estimated), sum(estimated_micro_usd), sum(unpriced), sum(saved_micro_usd)
    FROM ledger_usageday GROUP BY environment, day
"""


class Migration(migrations.Migration):
    dependencies = [
        ("ledger", "0001_store_usage"),
    ]

    operations = [
        migrations.CreateModel(
            name="UsageTotal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
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
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "day"), name="usage_total_once")
                ],
            },
        ),
        Long(migrations.RunSQL(_FILL, migrations.RunSQL.noop)),
    ]
