"""Change requests, as of release 0.2.0."""

from django.db import migrations, models
from django.db.models.functions import Now
from pgtrigger.compiler import Trigger, UpsertTriggerSql
from pgtrigger.migrations import AddTrigger


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("approvals", "0001_keep_change_requests"),
        ("approvals", "0002_revert_a_revision"),
        ("approvals", "0003_keep_what_must_exist"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ChangeRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("approved", "Approved"),
                            ("applied", "Applied"),
                            ("rejected", "Rejected"),
                            ("withdrawn", "Withdrawn"),
                            ("expired", "Expired"),
                        ],
                        default="open",
                        max_length=16,
                    ),
                ),
                ("version", models.IntegerField(default=1)),
                ("base", models.BigIntegerField()),
                ("action", models.CharField(max_length=64)),
                ("target", models.CharField(blank=True, max_length=200)),
                ("reason", models.CharField(max_length=500)),
                ("author", models.CharField(max_length=200)),
                ("role", models.CharField(max_length=32)),
                ("origin", models.CharField(max_length=16)),
                ("address", models.CharField(blank=True, max_length=64)),
                ("persons", models.JSONField(default=list)),
                ("whole", models.BooleanField(default=False)),
                ("restores", models.BigIntegerField(blank=True, null=True)),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                ("document", models.JSONField(blank=True, null=True)),
                ("title", models.CharField(blank=True, max_length=200)),
                ("lowers_to", models.SmallIntegerField(blank=True, null=True)),
                ("entries", models.JSONField(default=list)),
                ("changed", models.IntegerField(default=0)),
                ("digest", models.CharField(blank=True, max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("expires_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("ended_by", models.CharField(blank=True, max_length=200)),
                ("ended_reason", models.CharField(blank=True, max_length=500)),
                ("revision", models.BigIntegerField(blank=True, null=True)),
                ("schedule", models.BigIntegerField(blank=True, null=True)),
                ("reverts", models.BigIntegerField(blank=True, null=True)),
                ("needs", models.CharField(blank=True, db_default="", default="", max_length=16)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["environment", "-id"], name="request_newest_first"),
                    models.Index(
                        condition=models.Q(("state__in", ["open", "approved"])),
                        fields=["environment", "expires_at"],
                        name="request_pending",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["open", "approved", "applied", "rejected", "withdrawn", "expired"])
                        ),
                        name="request_state_known",
                    ),
                    models.UniqueConstraint(fields=("environment", "revision"), name="request_of_revision"),
                    models.UniqueConstraint(fields=("schedule",), name="request_of_schedule"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ProposedChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=16)),
                ("name", models.CharField(max_length=200)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                (
                    "request",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="changes", to="approvals.changerequest"),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("request", "kind", "name"), name="proposed_change_once")
                ]
            },
        ),
        migrations.CreateModel(
            name="Rule",
            fields=[
                ("environment", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("needed", models.SmallIntegerField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("needed__range", (0, 5))), name="approvals_needed_range")
                ]
            },
        ),
        migrations.CreateModel(
            name="Approval",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.IntegerField()),
                ("person", models.CharField(max_length=150)),
                ("actor", models.CharField(max_length=200)),
                ("at", models.DateTimeField(db_default=Now())),
                ("note", models.CharField(blank=True, max_length=500)),
                (
                    "request",
                    models.ForeignKey(on_delete=models.PROTECT, related_name="approvals", to="approvals.changerequest"),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("request", "version", "person"), name="approved_once")]
            },
        ),
        AddTrigger(
            model_name="approval",
            trigger=Trigger(
                name="approval_stays",
                sql=UpsertTriggerSql(
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;",
                    hash="ce71f1c0250497b7f0f470350798aa4b0fe498a2",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_approval_stays_09afc",
                    table="approvals_approval",
                    when="BEFORE",
                ),
            ),
        ),
    ]
