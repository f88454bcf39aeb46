import controlplane.policies.models
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("policies", "0023_keep_descriptor_files")]

    operations = [
        migrations.AlterField(
            model_name="descriptorfile",
            name="name",
            field=models.CharField(max_length=200, validators=[controlplane.policies.models.check_domain]),
        ),
    ]
