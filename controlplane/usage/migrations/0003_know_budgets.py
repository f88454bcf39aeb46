from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("usage", "0002_keep_demand_by_rule"),
    ]

    operations = [
        migrations.CreateModel(
            name="KnownBudget",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("environment", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=400)),
                ("began", models.BigIntegerField()),
                ("mark", models.CharField(max_length=20)),
                ("amount", models.BigIntegerField()),
                ("beyond", models.BigIntegerField()),
                ("at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "key"), name="known_budget_once")
                ],
                "indexes": [models.Index(fields=["at"], name="known_budget_by_time")],
            },
        ),
    ]
