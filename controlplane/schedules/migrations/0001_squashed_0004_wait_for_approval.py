"""Changes that apply later, as of release 0.2.0."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("schedules", "0001_create_schedules"),
        ("schedules", "0002_say_what_must_exist"),
        ("schedules", "0003_remember_what_was_seen"),
        ("schedules", "0004_wait_for_approval"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("due_at", models.DateTimeField()),
                ("document", models.JSONField()),
                ("title", models.CharField(max_length=200)),
                ("reason", models.CharField(max_length=500)),
                ("actor", models.CharField(max_length=200)),
                ("role", models.CharField(max_length=32)),
                ("created_at", models.DateTimeField(db_default=Now())),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("applied", "Applied"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                            ("proposed", "Waiting for approval"),
                        ],
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("announced_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("ended_by", models.CharField(blank=True, max_length=200)),
                ("error", models.CharField(blank=True, max_length=1000)),
                ("seen", models.BooleanField(default=False)),
                ("revision", models.BigIntegerField(blank=True, null=True)),
                (
                    "needs",
                    models.CharField(
                        blank=True,
                        choices=[("", "Anything"), ("new", "New"), ("present", "Present")],
                        db_default="",
                        default="",
                        max_length=16,
                    ),
                ),
                ("base", models.BigIntegerField(db_default=0, default=0)),
                ("request", models.BigIntegerField(blank=True, null=True)),
            ],
            options={
                "indexes": [
                    models.Index(condition=models.Q(("state", "waiting")), fields=["due_at"], name="schedule_waiting"),
                    models.Index(fields=["environment", "-due_at"], name="schedule_newest_first"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["waiting", "applied", "failed", "cancelled", "proposed"])),
                        name="schedule_state_known",
                    )
                ],
            },
        ),
    ]
