"""Orders of operators to gateways."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0004_count_spending_pods")]

    operations = [
        migrations.CreateModel(
            name="GatewayOrder",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("environment", models.CharField(max_length=64)),
                ("kind", models.CharField(choices=[("forget", "Forget"), ("lift_freeze", "Lift Freeze")], max_length=16)),
                ("server", models.CharField(blank=True, max_length=64)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={"indexes": [models.Index(fields=["at"], name="fleet_order_by_time")]},
        )
    ]
