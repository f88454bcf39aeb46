"""A token of pods can be valid for one service, or for names with one prefix, only."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0004_end_tokens_with_their_owners")]

    operations = [
        migrations.AddField(
            model_name="agenttoken",
            name=name,
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        )
        for name in ("service", "name_prefix")
    ]
