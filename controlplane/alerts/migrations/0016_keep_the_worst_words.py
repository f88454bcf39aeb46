from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('alerts', '0015_keep_the_words_of_then'),
    ]

    operations = [
        migrations.AddField(
            model_name='alert',
            name='worst_text',
            field=models.CharField(blank=True, db_default='', default='', max_length=500),
        ),
    ]
