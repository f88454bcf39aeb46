from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0018_measure_cpu_of_redis")]

    operations = [
        migrations.AddField("server", "seen", models.JSONField(default=list, db_default=[])),
    ]
