import controlplane.policies.models
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("policies", "0022_follow_latency")]

    operations = [
        migrations.CreateModel(
            name="DescriptorFile",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(max_length=64, validators=[controlplane.policies.models.check_slug]),
                ),
                ("file", models.TextField()),
                ("version", models.IntegerField(default=1)),
                (
                    "environment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="descriptor_files",
                        to="policies.environment",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "name"), name="descriptor_file_once")
                ],
            },
        ),
    ]
