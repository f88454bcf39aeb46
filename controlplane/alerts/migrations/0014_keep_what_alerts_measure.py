from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('alerts', '0013_send_weekly_summaries'),
    ]

    operations = [
        migrations.AddField(
            model_name='alert',
            name='points',
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
        migrations.AddField(
            model_name='alert',
            name='turns',
            field=models.JSONField(blank=True, db_default=[], default=list),
        ),
    ]
