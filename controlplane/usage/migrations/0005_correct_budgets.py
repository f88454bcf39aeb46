from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("usage", "0004_wait_for_the_ledger"),
    ]

    operations = [
        migrations.CreateModel(
            name="BudgetCorrection",
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
                ("ends", models.BigIntegerField()),
                ("amount", models.BigIntegerField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["environment", "key"], name="budget_correction_by_key")
                ],
            },
        ),
    ]
