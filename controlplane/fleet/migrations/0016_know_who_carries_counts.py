from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0015_show_locks_of_pods")]

    operations = [
        migrations.AddField(
            model_name="server",
            name="carries_counts",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
