"""Somebody knows a newer revision than this database: it was restored from a backup."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("publishing", "0001_create_outbox")]

    operations = [
        migrations.CreateModel(
            name="Ahead",
            fields=[
                ("environment", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("epoch", models.BigIntegerField()),
                ("revision", models.BigIntegerField()),
                ("who", models.CharField(max_length=100)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={"verbose_name_plural": "ahead"},
        ),
    ]
