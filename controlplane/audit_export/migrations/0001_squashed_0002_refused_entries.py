"""Where the audit is exported to, as of release 0.2.0."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("audit_export", "0001_export_the_audit"), ("audit_export", "0002_refused_entries")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Export",
            fields=[
                ("target", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("positions", models.JSONField(default=dict)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("fence", models.IntegerField(default=0)),
                ("failures", models.IntegerField(default=0)),
                ("not_before", models.DateTimeField(blank=True, null=True)),
                ("problem", models.CharField(blank=True, default="", max_length=500)),
                ("refusals", models.JSONField(db_default={}, default=dict)),
            ],
        ),
    ]
