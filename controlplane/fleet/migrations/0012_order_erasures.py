"""Gateways forget a tenant that is erased. Only the choices change: no column does."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0011_show_identity_of_pods")]

    operations = [
        migrations.AlterField(
            model_name="gatewayorder",
            name="kind",
            field=models.CharField(
                choices=[("forget", "Forget"), ("lift_freeze", "Lift Freeze"), ("erase", "Erase")],
                max_length=16,
            ),
        )
    ]
