from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0020_know_who_enforces_budgets")]

    operations = [
        migrations.AddField(
            model_name="server",
            name="serves_node",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
