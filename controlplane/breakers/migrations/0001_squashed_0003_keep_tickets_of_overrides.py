"""Overrides and transitions of breakers, as of release 0.2.0."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("breakers", "0001_create_overrides_and_transitions"),
        ("breakers", "0002_keep_figures_of_trips"),
        ("breakers", "0003_keep_tickets_of_overrides"),
    ]

    dependencies = [("policies", "0001_create_configuration")]

    operations = [
        migrations.CreateModel(
            name="StreamPosition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("last_id", models.CharField(default="0-0", max_length=64)),
                (
                    "dependency",
                    models.OneToOneField(
                        on_delete=models.CASCADE, related_name="stream_position", to="policies.dependency"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Override",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("forced_open", "forced_open"),
                            ("forced_closed", "forced_closed"),
                            ("metrics_only", "metrics_only"),
                            ("disabled", "disabled"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reason", models.CharField(max_length=500)),
                ("actor", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("expires_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("ended_by", models.CharField(blank=True, max_length=200)),
                ("revision", models.BigIntegerField()),
                (
                    "dependency",
                    models.ForeignKey(on_delete=models.PROTECT, related_name="overrides", to="policies.dependency"),
                ),
                ("ticket", models.CharField(blank=True, db_default="", default="", max_length=300)),
            ],
            options={
                "indexes": [models.Index(fields=["dependency", "-created_at"], name="override_newest_first")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("dependency",),
                        name="override_one_at_a_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["forced_open", "forced_closed", "metrics_only", "disabled"])),
                        name="override_mode_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("expires_at__gt", models.F("created_at"))),
                        name="override_expires_after_start",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("reason", ""), _negated=True), name="override_has_reason"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Transition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("generation", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                ("from_state", models.CharField(max_length=16)),
                (
                    "to_state",
                    models.CharField(
                        choices=[("closed", "closed"), ("open", "open"), ("half_open", "half_open")], max_length=16
                    ),
                ),
                ("cause", models.CharField(max_length=64)),
                ("actor", models.CharField(blank=True, max_length=200)),
                ("server", models.CharField(blank=True, max_length=64)),
                (
                    "dependency",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="transitions", to="policies.dependency"),
                ),
                ("figures", models.JSONField(blank=True, null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["dependency", "-at"], name="transition_newest_first")],
                "constraints": [models.UniqueConstraint(fields=("dependency", "generation"), name="transition_once")],
            },
        ),
    ]
