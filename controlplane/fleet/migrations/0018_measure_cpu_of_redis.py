from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0017_show_uncharged_measures"),
    ]

    operations = [
        migrations.AddField(
            model_name="redisnode",
            name="cpu_s",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="redisnode",
            name="cpu_share",
            field=models.FloatField(null=True),
        ),
    ]
