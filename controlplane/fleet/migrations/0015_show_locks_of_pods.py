from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0014_measure_redis")]

    operations = [migrations.AddField("server", "primitives", models.JSONField(null=True))]
