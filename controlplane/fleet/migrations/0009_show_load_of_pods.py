from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0008_leave_fleet_breakers_to_transitions")]

    operations = [
        migrations.AddField("server", "load", models.JSONField(default=dict, db_default={})),
    ]
