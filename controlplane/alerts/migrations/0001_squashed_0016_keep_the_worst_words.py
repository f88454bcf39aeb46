"""Alerts, incidents, and who gets their messages, as of release 0.2.0. URLs of receivers are encrypted."""

from uuid import uuid4

from django.db import migrations, models
from django.db.models.functions import Now

from controlplane.encryption import EncryptedUrl


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("alerts", "0001_keep_alerts"),
        ("alerts", "0002_send_alerts"),
        ("alerts", "0003_mute_alerts"),
        ("alerts", "0004_route_alerts"),
        ("alerts", "0005_escalate_alerts"),
        ("alerts", "0006_explain_alerts"),
        ("alerts", "0007_measure_the_fleet"),
        ("alerts", "0008_skip_a_period_of_a_mute"),
        ("alerts", "0009_hand_in_alerts"),
        ("alerts", "0010_follow_incidents"),
        ("alerts", "0011_encrypt_receivers"),
        ("alerts", "0012_say_why_alerts_end"),
        ("alerts", "0013_send_weekly_summaries"),
        ("alerts", "0014_keep_what_alerts_measure"),
        ("alerts", "0015_keep_the_words_of_then"),
        ("alerts", "0016_keep_the_worst_words"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Evaluation",
            fields=[
                ("environment", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("measured", models.JSONField(db_default={}, default=dict)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("resumed_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Receiver",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=64)),
                ("url", EncryptedUrl()),
                ("least_level", models.SmallIntegerField(default=2)),
                ("least_severity", models.CharField(default="warning", max_length=16)),
                ("secret_version", models.IntegerField(default=1)),
                ("old_secret_until", models.DateTimeField(blank=True, null=True)),
                ("disabled_because", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("weekly", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("environment", "name"), name="alert_receiver_once")]
            },
        ),
        migrations.CreateModel(
            name="Mute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("rule", models.CharField(blank=True, max_length=64)),
                ("dependency", models.CharField(blank=True, max_length=200)),
                ("pod", models.CharField(blank=True, max_length=200)),
                ("reason", models.CharField(max_length=500)),
                ("by", models.CharField(max_length=200)),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("weekly", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("ended_by", models.CharField(blank=True, max_length=200)),
                ("skipped_until", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at", None)), fields=["environment"], name="alert_mute_not_ended"
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="Route",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=64)),
                ("place", models.IntegerField(default=1)),
                ("owner", models.CharField(blank=True, max_length=200)),
                ("least_level", models.SmallIntegerField(default=1)),
                ("least_severity", models.CharField(default="warning", max_length=16)),
                ("days", models.JSONField(blank=True, default=list)),
                ("begins", models.CharField(blank=True, max_length=5)),
                ("ends", models.CharField(blank=True, max_length=5)),
                ("zone", models.CharField(default="UTC", max_length=64)),
                ("steps", models.JSONField(default=list)),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("environment", "name"), name="alert_route_once")]},
        ),
        migrations.CreateModel(
            name="Incident",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("cause", models.CharField(max_length=200)),
                ("title", models.CharField(max_length=500)),
                ("level", models.SmallIntegerField()),
                ("severity", models.CharField(max_length=16)),
                ("started_at", models.DateTimeField()),
                ("opened_at", models.DateTimeField()),
                ("detected_at", models.DateTimeField(blank=True, null=True)),
                ("quiet_since", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                ("closed_by", models.CharField(blank=True, db_default="", default="", max_length=200)),
                ("reopened", models.IntegerField(db_default=0, default=0)),
                ("divisor", models.IntegerField(db_default=1, default=1)),
                ("share_version", models.IntegerField(db_default=1, default=1)),
                (
                    "merged_into",
                    models.ForeignKey(blank=True, null=True, on_delete=models.SET_NULL, to="alerts.incident"),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["environment", "-started_at"], name="incident_newest")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("closed_at", None)),
                        fields=("environment", "cause"),
                        name="incident_open_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=200)),
                ("level", models.SmallIntegerField()),
                ("severity", models.CharField(max_length=16)),
                ("worst", models.CharField(max_length=16)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("firing", "firing"),
                            ("recovering", "recovering"),
                            ("resolved", "resolved"),
                        ],
                        max_length=16,
                    ),
                ),
                ("true_since", models.DateTimeField()),
                ("level_since", models.DateTimeField()),
                ("fired_at", models.DateTimeField(blank=True, null=True)),
                ("clear_since", models.DateTimeField(blank=True, null=True)),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                ("blind_since", models.DateTimeField(blank=True, null=True)),
                ("text", models.CharField(max_length=500)),
                ("detail", models.CharField(blank=True, max_length=2000)),
                ("runbook", models.CharField(blank=True, max_length=100)),
                ("subject_kind", models.CharField(max_length=32)),
                ("subject_name", models.CharField(blank=True, max_length=200)),
                ("subject_quota", models.CharField(blank=True, max_length=200)),
                ("acknowledged_by", models.CharField(blank=True, max_length=200)),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                ("note", models.CharField(blank=True, max_length=500)),
                ("notified", models.CharField(blank=True, db_default="", default="", max_length=16)),
                ("pods", models.JSONField(blank=True, db_default=[], default=list)),
                ("escalations", models.JSONField(blank=True, db_default=[], default=list)),
                (
                    "cause",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=models.SET_NULL, related_name="explained", to="alerts.alert"
                    ),
                ),
                ("changes", models.JSONField(blank=True, db_default=[], default=list)),
                ("flapping_since", models.DateTimeField(blank=True, null=True)),
                (
                    "incident",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=models.SET_NULL, related_name="alerts", to="alerts.incident"
                    ),
                ),
                ("idle_since", models.DateTimeField(blank=True, null=True)),
                ("resolved_why", models.CharField(blank=True, db_default="", default="", max_length=16)),
                ("points", models.JSONField(blank=True, db_default=[], default=list)),
                ("turns", models.JSONField(blank=True, db_default=[], default=list)),
                ("begun_text", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("begun_detail", models.CharField(blank=True, db_default="", default="", max_length=2000)),
                ("fired_text", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("worst_text", models.CharField(blank=True, db_default="", default="", max_length=500)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["environment", "-true_since"], name="alert_newest"),
                    models.Index(
                        condition=models.Q(("state", "resolved")),
                        fields=["environment", "key", "-resolved_at"],
                        name="alert_resolved_of_key",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "resolved"), _negated=True),
                        fields=("environment", "key"),
                        name="alert_open_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.UUIDField(default=uuid4, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=16)),
                ("place", models.IntegerField(default=1)),
                ("document", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("sending", "Sending"),
                            ("sent", "Sent"),
                            ("gave_up", "Gave Up"),
                            ("superseded", "Superseded"),
                        ],
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("attempts", models.IntegerField(default=0)),
                ("not_before", models.DateTimeField(db_default=Now())),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("fence", models.IntegerField(default=0)),
                ("result", models.CharField(blank=True, max_length=500)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("alert", models.ForeignKey(blank=True, null=True, on_delete=models.CASCADE, to="alerts.alert")),
                ("receiver", models.ForeignKey(on_delete=models.CASCADE, to="alerts.receiver")),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ("waiting", "sending"))),
                        fields=["not_before"],
                        name="alert_delivery_due",
                    ),
                    models.Index(fields=["receiver", "-created_at"], name="alert_delivery_newest"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("receiver", "alert", "place"), name="alert_delivery_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="IncidentLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=Now())),
                ("by", models.CharField(max_length=200)),
                ("text", models.CharField(max_length=2000)),
                ("runbook", models.CharField(blank=True, db_default="", default="", max_length=100)),
                ("step", models.IntegerField(blank=True, null=True)),
                ("done", models.BooleanField(db_default=False, default=False)),
                ("incident", models.ForeignKey(on_delete=models.CASCADE, related_name="lines", to="alerts.incident")),
            ],
            options={"indexes": [models.Index(fields=["incident", "-at", "-id"], name="incident_line_newest")]},
        ),
        migrations.CreateModel(
            name="Marker",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("at", models.DateTimeField()),
                ("text", models.CharField(max_length=200)),
                ("service", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now())),
            ],
            options={"indexes": [models.Index(fields=["environment", "-at"], name="marker_newest")]},
        ),
    ]
