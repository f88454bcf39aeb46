"""Demand of tenants, as of release 0.2.0."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("usage", "0001_create_demand"),
        ("usage", "0002_keep_demand_by_rule"),
        ("usage", "0003_know_budgets"),
        ("usage", "0004_wait_for_the_ledger"),
        ("usage", "0005_correct_budgets"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Demand",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("tenant", models.CharField(max_length=200)),
                ("grain_s", models.IntegerField()),
                ("at", models.DateTimeField()),
                ("asked", models.BigIntegerField()),
                ("refused", models.BigIntegerField()),
            ],
            options={
                "verbose_name_plural": "demand",
                "indexes": [models.Index(fields=["environment", "grain_s", "at"], name="demand_by_time")],
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "tenant", "grain_s", "at"), name="demand_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="RuleDemand",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("tenant", models.CharField(max_length=200)),
                ("rule", models.CharField(max_length=64)),
                ("grain_s", models.IntegerField()),
                ("at", models.DateTimeField()),
                ("asked", models.BigIntegerField()),
                ("refused", models.BigIntegerField()),
                ("shadow", models.BigIntegerField()),
            ],
            options={
                "verbose_name_plural": "demand by rule",
                "indexes": [models.Index(fields=["environment", "grain_s", "at"], name="rule_demand_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("environment", "tenant", "rule", "grain_s", "at"), name="rule_demand_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="KnownBudget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=400)),
                ("began", models.BigIntegerField()),
                ("mark", models.CharField(max_length=20)),
                ("amount", models.BigIntegerField()),
                ("beyond", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                ("ledger_waits", models.BooleanField(db_default=False, default=False)),
                ("cleared", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("environment", "key"), name="known_budget_once")],
                "indexes": [models.Index(fields=["at"], name="known_budget_by_time")],
            },
        ),
        migrations.CreateModel(
            name="BudgetCorrection",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=400)),
                ("began", models.BigIntegerField()),
                ("ends", models.BigIntegerField()),
                ("amount", models.BigIntegerField()),
            ],
            options={"indexes": [models.Index(fields=["environment", "key"], name="budget_correction_by_key")]},
        ),
    ]
