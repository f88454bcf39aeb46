"""Why a breaker tripped: what was counted at that moment."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("breakers", "0001_create_overrides_and_transitions")]

    operations = [migrations.AddField("transition", "figures", models.JSONField(blank=True, null=True))]
