from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("usage", "0003_know_budgets"),
    ]

    operations = [
        migrations.AddField(
            model_name="knownbudget",
            name="ledger_waits",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="knownbudget",
            name="cleared",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
