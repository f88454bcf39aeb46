from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_bind_agent_tokens")]

    operations = [
        migrations.RemoveConstraint(model_name="apitoken", name="api_token_role_known"),
        migrations.AlterField(
            model_name="apitoken",
            name="role",
            field=models.CharField(
                choices=[
                    ("viewer", "Viewer"),
                    ("operator", "Operator"),
                    ("admin", "Admin"),
                    ("metrics", "Metrics only"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="apitoken",
            constraint=models.CheckConstraint(
                condition=models.Q(role__in=["viewer", "operator", "admin", "metrics"]),
                name="api_token_role_known",
            ),
        ),
    ]
