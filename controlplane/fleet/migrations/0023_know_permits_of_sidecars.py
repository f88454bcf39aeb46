from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0022_count_descriptors")]

    operations = [migrations.AddField("server", "permits", models.JSONField(default=dict, db_default={}))]
