"""Revisions that wait to be published, as of release 0.2.0."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("publishing", "0001_create_outbox"),
        ("publishing", "0002_note_who_is_ahead"),
        ("publishing", "0003_believe_redis_only"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="OutboxEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("epoch", models.BigIntegerField()),
                ("revision", models.BigIntegerField()),
                ("reset", models.CharField(blank=True, max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("published_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name_plural": "outbox entries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("published_at__isnull", True)),
                        fields=["environment", "revision"],
                        name="outbox_waiting",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "epoch", "revision"), name="outbox_revision_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Ahead",
            fields=[
                ("environment", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("epoch", models.BigIntegerField()),
                ("revision", models.BigIntegerField()),
                ("who", models.CharField(max_length=100)),
                ("at", models.DateTimeField(db_default=Now())),
            ],
            options={"verbose_name_plural": "ahead"},
        ),
    ]
