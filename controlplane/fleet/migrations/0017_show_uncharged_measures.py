from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0016_know_who_carries_counts")]

    operations = [
        migrations.AddField("server", "uncharged", models.JSONField(default=list, db_default=[])),
    ]
