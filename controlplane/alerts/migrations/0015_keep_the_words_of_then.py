from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('alerts', '0014_keep_what_alerts_measure'),
    ]

    operations = [
        migrations.AddField(
            model_name='alert',
            name='begun_text',
            field=models.CharField(blank=True, db_default='', default='', max_length=500),
        ),
        migrations.AddField(
            model_name='alert',
            name='begun_detail',
            field=models.CharField(blank=True, db_default='', default='', max_length=2000),
        ),
        migrations.AddField(
            model_name='alert',
            name='fired_text',
            field=models.CharField(blank=True, db_default='', default='', max_length=500),
        ),
    ]
