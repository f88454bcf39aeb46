from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("policies", "0020_bound_parts_of_streams")]

    operations = [
        migrations.AddField(
            model_name="dependency",
            name="store_wait_ms",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddConstraint(
            model_name="dependency",
            constraint=models.CheckConstraint(
                condition=models.Q(("store_wait_ms__range", (0, 500))),
                name="dependency_store_wait_ms_range",
            ),
        ),
    ]
