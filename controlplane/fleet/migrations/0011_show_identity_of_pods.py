from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0010_keep_failed_calls")]

    operations = [
        migrations.AddField("server", "token", models.CharField(max_length=64, blank=True, default="", db_default="")),
        migrations.AddField(
            "server", "address", models.CharField(max_length=64, blank=True, default="", db_default="")
        ),
        migrations.AddField("server", "share", models.JSONField(default=dict, db_default={})),
    ]
