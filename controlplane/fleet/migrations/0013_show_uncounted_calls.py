from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0012_order_erasures")]

    operations = [migrations.AddField("server", "alone", models.JSONField(default=dict, db_default={}))]
