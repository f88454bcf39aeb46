"""Models, prices, accounts and budgets, as of release 0.2.0."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

from controlplane.spending.budget_rows import check_budget_name
from controlplane.spending.models import check_name


class Migration(migrations.Migration):
    initial = True

    replaces = [("spending", "0001_create_models"), ("spending", "0002_accounts_and_budgets")]

    dependencies = [("policies", "0020_bound_parts_of_streams")]

    operations = [
        migrations.CreateModel(
            name="Model",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=64, validators=[check_name])),
                (
                    "aliases",
                    ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None),
                ),
                ("pool", models.CharField(blank=True, default="", max_length=64)),
                ("version", models.IntegerField(default=1)),
                (
                    "environment",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="models", to="policies.environment"),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "name"), name="model_once"),
                    models.CheckConstraint(condition=models.Q(("aliases__len__lte", 50)), name="model_aliases_few"),
                ]
            },
        ),
        migrations.CreateModel(
            name="Price",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("starts_at", models.DateTimeField()),
                ("input", models.BigIntegerField()),
                ("cached", models.BigIntegerField()),
                ("written", models.BigIntegerField()),
                ("output", models.BigIntegerField()),
                ("batch_percent", models.IntegerField(default=100)),
                ("long_above", models.BigIntegerField(default=0)),
                ("long_input", models.BigIntegerField(default=0)),
                ("long_cached", models.BigIntegerField(default=0)),
                ("long_written", models.BigIntegerField(default=0)),
                ("long_output", models.BigIntegerField(default=0)),
                ("model", models.ForeignKey(on_delete=models.CASCADE, related_name="prices", to="spending.model")),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("model", "starts_at"), name="price_once"),
                    models.CheckConstraint(
                        condition=models.Q(("input__range", (0, 1000000000000))), name="price_input_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("cached__range", (0, 1000000000000))), name="price_cached_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("written__range", (0, 1000000000000))), name="price_written_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("output__range", (0, 1000000000000))), name="price_output_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("long_input__range", (0, 1000000000000))), name="price_long_input_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("long_cached__range", (0, 1000000000000))), name="price_long_cached_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("long_written__range", (0, 1000000000000))), name="price_long_written_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("long_output__range", (0, 1000000000000))), name="price_long_output_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("batch_percent__range", (1, 100))), name="price_batch_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("long_above__range", (0, 1000000000))), name="price_long_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("long_above__gt", 0),
                            models.Q(("long_cached", 0), ("long_input", 0), ("long_output", 0), ("long_written", 0)),
                            _connector="OR",
                        ),
                        name="price_long_or_none",
                    ),
                ]
            },
        ),
        migrations.CreateModel(
            name="Account",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=64, validators=[check_budget_name])),
                ("hosts", ArrayField(base_field=models.CharField(max_length=253), blank=True, default=list, size=None)),
                ("pools", ArrayField(base_field=models.CharField(max_length=64), blank=True, default=list, size=None)),
                ("version", models.IntegerField(default=1)),
                (
                    "environment",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="accounts", to="policies.environment"),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "name"), name="account_once"),
                    models.CheckConstraint(condition=models.Q(("hosts__len__lte", 20)), name="account_hosts_few"),
                    models.CheckConstraint(condition=models.Q(("pools__len__lte", 100)), name="account_pools_few"),
                ]
            },
        ),
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40, validators=[check_budget_name])),
                ("account", models.CharField(blank=True, default="", max_length=64)),
                ("dependency", models.CharField(blank=True, default="", max_length=64)),
                ("tier", models.CharField(blank=True, default="", max_length=64)),
                ("tenant", models.CharField(blank=True, default="", max_length=200)),
                ("amount", models.BigIntegerField()),
                ("measure", models.CharField(default="micro_usd", max_length=64)),
                (
                    "period",
                    models.CharField(
                        choices=[("hour", "hour"), ("day", "day"), ("week", "week"), ("month", "month")], max_length=8
                    ),
                ),
                ("time_zone", models.CharField(default="UTC", max_length=64)),
                ("instead_of", models.CharField(blank=True, default="", max_length=40)),
                ("warn_percent", models.IntegerField(default=80)),
                (
                    "at_100",
                    models.CharField(
                        choices=[("stop", "stop"), ("warn", "warn"), ("degrade", "degrade")],
                        default="stop",
                        max_length=16,
                    ),
                ),
                ("raised_to", models.BigIntegerField(blank=True, null=True)),
                ("raised_until", models.DateTimeField(blank=True, null=True)),
                ("version", models.IntegerField(default=1)),
                (
                    "environment",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="budgets", to="policies.environment"),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "name"), name="budget_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("amount__range", (0, 9007199254740991)),
                            models.Q(
                                ("raised_to__isnull", True),
                                ("raised_to__range", (0, 9007199254740991)),
                                _connector="OR",
                            ),
                        ),
                        name="budget_amount_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("warn_percent__range", (0, 100))), name="budget_warn_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("raised_to__isnull", True), ("raised_until__isnull", True)),
                            models.Q(("raised_to__isnull", False), ("raised_until__isnull", False)),
                            _connector="OR",
                        ),
                        name="budget_raised_until",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                models.Q(("account", ""), _negated=True),
                                ("dependency", ""),
                                ("tenant", ""),
                                ("tier", ""),
                            ),
                            models.Q(
                                models.Q(("dependency", ""), _negated=True),
                                ("account", ""),
                                ("tenant", ""),
                                ("tier", ""),
                            ),
                            models.Q(
                                models.Q(("tier", ""), _negated=True),
                                ("account", ""),
                                ("dependency", ""),
                                ("tenant", ""),
                            ),
                            models.Q(
                                models.Q(("tenant", ""), _negated=True),
                                ("account", ""),
                                ("dependency", ""),
                                ("tier", ""),
                            ),
                            _connector="OR",
                        ),
                        name="budget_one_owner",
                    ),
                ]
            },
        ),
    ]
