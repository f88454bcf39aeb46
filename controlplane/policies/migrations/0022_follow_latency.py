from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("policies", "0021_wait_for_redis")]

    operations = [
        migrations.AddField(
            model_name="dependency",
            name="latency_rise_percent",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.CheckConstraint(
                condition=models.Q(("latency_rise_percent__range", (0, 1000))),
                name="dependency_latency_rise_percent_range",
            ),
        ),
    ]
