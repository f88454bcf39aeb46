from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("ledger", "0002_sum_up_days")]

    operations = [
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("account", models.CharField(max_length=64)),
                ("month", models.DateField()),
                ("micro_usd", models.BigIntegerField()),
            ],
            options={
                "constraints": (
                    models.UniqueConstraint(fields=("environment", "account", "month"), name="invoice_once"),
                    models.CheckConstraint(
                        condition=models.Q(("micro_usd__range", (0, 9007199254740991))), name="invoice_range"
                    ),
                )
            },
        )
    ]
