from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0019_know_what_vendors_state")]

    operations = [
        migrations.AddField(
            model_name="server",
            name="enforces_budgets",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
