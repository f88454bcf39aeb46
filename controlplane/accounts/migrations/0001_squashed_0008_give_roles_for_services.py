"""What people and tokens may do, as of release 0.2.0."""

from django.contrib.auth.models import UserManager
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.db import migrations, models
from django.db.models.functions import Now
from django.utils.timezone import now

# A new account never inherits the API tokens of an earlier account with the same name.
REVOKE = """
CREATE FUNCTION accounts_revoke_inherited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accounts_apitoken SET revoked_at = now() WHERE owner = NEW.username AND revoked_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER accounts_revoke_inherited AFTER INSERT ON accounts_user
  FOR EACH ROW EXECUTE FUNCTION accounts_revoke_inherited();
CREATE TRIGGER accounts_revoke_inherited_by_name AFTER UPDATE ON accounts_user
  FOR EACH ROW WHEN (OLD.username <> NEW.username) EXECUTE FUNCTION accounts_revoke_inherited();
"""
DROP = """
DROP TRIGGER accounts_revoke_inherited_by_name ON accounts_user;
DROP TRIGGER accounts_revoke_inherited ON accounts_user;
DROP FUNCTION accounts_revoke_inherited();
"""


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("accounts", "0001_create_users_and_tokens"),
        ("accounts", "0002_sign_in_and_out"),
        ("accounts", "0003_know_owners_of_tokens"),
        ("accounts", "0004_end_tokens_with_their_owners"),
        ("accounts", "0005_bind_agent_tokens"),
        ("accounts", "0006_let_tokens_read_metrics_only"),
        ("accounts", "0007_save_views"),
        ("accounts", "0008_give_roles_for_services"),
    ]

    dependencies = [("auth", "0012_alter_user_first_name_max_length")]

    operations = [
        migrations.CreateModel(
            name="AgentToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200)),
                ("selector", models.CharField(max_length=32, unique=True)),
                ("digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("environment", models.CharField(max_length=64)),
                ("service", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("name_prefix", models.CharField(blank=True, db_default="", default="", max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200)),
                ("selector", models.CharField(max_length=32, unique=True)),
                ("digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "Viewer"),
                            ("operator", "Operator"),
                            ("admin", "Admin"),
                            ("metrics", "Metrics only"),
                        ],
                        max_length=16,
                    ),
                ),
                ("environment", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("owner", models.CharField(blank=True, db_default="", default="", max_length=150)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ["viewer", "operator", "admin", "metrics"])),
                        name="api_token_role_known",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="User",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("password", models.CharField(max_length=128, verbose_name="password")),
                ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                (
                    "is_superuser",
                    models.BooleanField(
                        default=False,
                        help_text="Designates that this user has all permissions without explicitly assigning them.",
                        verbose_name="superuser status",
                    ),
                ),
                (
                    "username",
                    models.CharField(
                        error_messages={"unique": "A user with that username already exists."},
                        help_text="Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.",
                        max_length=150,
                        unique=True,
                        validators=[UnicodeUsernameValidator()],
                        verbose_name="username",
                    ),
                ),
                ("first_name", models.CharField(blank=True, max_length=150, verbose_name="first name")),
                ("last_name", models.CharField(blank=True, max_length=150, verbose_name="last name")),
                ("email", models.EmailField(blank=True, max_length=254, verbose_name="email address")),
                (
                    "is_staff",
                    models.BooleanField(
                        default=False,
                        help_text="Designates whether the user can log into this admin site.",
                        verbose_name="staff status",
                    ),
                ),
                (
                    "is_active",
                    models.BooleanField(
                        default=True,
                        help_text="Designates whether this user should be treated as active. Unselect this instead of deleting accounts.",
                        verbose_name="active",
                    ),
                ),
                ("date_joined", models.DateTimeField(default=now, verbose_name="date joined")),
                (
                    "role",
                    models.CharField(
                        choices=[("viewer", "Viewer"), ("operator", "Operator"), ("admin", "Admin")],
                        default="viewer",
                        max_length=16,
                    ),
                ),
                (
                    "groups",
                    models.ManyToManyField(
                        blank=True,
                        help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.group",
                        verbose_name="groups",
                    ),
                ),
                (
                    "user_permissions",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Specific permissions for this user.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.permission",
                        verbose_name="user permissions",
                    ),
                ),
                ("environment_roles", models.JSONField(blank=True, default=dict)),
                ("service_roles", models.JSONField(blank=True, db_default={}, default=dict)),
            ],
            options={
                "verbose_name": "user",
                "verbose_name_plural": "users",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("role__in", ["viewer", "operator", "admin"])), name="user_role_known"
                    )
                ],
            },
            managers=[("objects", UserManager())],
        ),
        migrations.CreateModel(
            name="Kept",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("value", models.JSONField()),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name="Login",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("expires_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("address", models.CharField(blank=True, max_length=64)),
                ("browser", models.CharField(blank=True, max_length=200)),
                ("user", models.ForeignKey(on_delete=models.CASCADE, related_name="logins", to="accounts.user")),
            ],
        ),
        migrations.CreateModel(
            name="Ticket",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("selector", models.CharField(max_length=32, unique=True)),
                ("digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                ("user", models.ForeignKey(on_delete=models.CASCADE, related_name="tickets", to="accounts.user")),
            ],
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=64)),
                ("page", models.CharField(max_length=32)),
                ("query", models.JSONField(blank=True, default=dict)),
                ("shared", models.BooleanField(db_default=False, default=False)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("owner", models.ForeignKey(on_delete=models.CASCADE, related_name="saved_views", to="accounts.user")),
            ],
            options={
                "indexes": [
                    models.Index(condition=models.Q(("shared", True)), fields=["environment"], name="saved_view_shared")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("owner", "environment", "name"), name="saved_view_named_once")
                ],
            },
        ),
        migrations.RunSQL(REVOKE, DROP),
    ]
