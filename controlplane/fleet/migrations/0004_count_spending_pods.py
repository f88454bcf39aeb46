"""Only processes that counted a request divide local shares. Rows from before count as one, as they did."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0003_keep_history_of_servers")]

    operations = [
        migrations.AddField(
            model_name="server", name="spending", field=models.IntegerField(default=1, db_default=1)
        )
    ]
