from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0013_show_uncounted_calls")]

    operations = [
        migrations.CreateModel(
            "RedisNode",
            [
                ("address", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("role", models.CharField(max_length=16)),
                ("up", models.BooleanField()),
                ("run_id", models.CharField(blank=True, max_length=64)),
                ("commands", models.BigIntegerField()),
                ("ops_per_s", models.FloatField(null=True)),
                ("memory_bytes", models.BigIntegerField()),
                ("memory_limit_bytes", models.BigIntegerField()),
                ("lag_s", models.FloatField(null=True)),
                ("read_at", models.DateTimeField()),
            ],
        ),
    ]
