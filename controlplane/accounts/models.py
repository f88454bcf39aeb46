from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Role(models.TextChoices):
    """Each role may do what the previous one may, and more."""

    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"


class User(AbstractUser):
    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)
    #: Environment -> the role there, where it differs from ``role``; an empty text means no role.
    environment_roles = models.JSONField(default=dict, blank=True)
    #: Environment -> service -> the role for what this service owns, where it is higher than the role there.
    service_roles = models.JSONField(default=dict, db_default={}, blank=True)

    class Meta(AbstractUser.Meta):
        constraints = (models.CheckConstraint(condition=Q(role__in=Role.values), name="user_role_known"),)


class Login(models.Model):
    """One session of one person. Once it has ended, no copy of its cookie works."""

    id = models.CharField(primary_key=True, max_length=32)
    user = models.ForeignKey(User, models.CASCADE, related_name="logins")
    created_at = models.DateTimeField(db_default=Now())
    #: The session ends then, even while it is in use.
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    address = models.CharField(max_length=64, blank=True)
    browser = models.CharField(max_length=200, blank=True)

    def __str__(self) -> str:
        return f"{self.user_id} from {self.address}"


class Ticket(models.Model):
    """A link that lets one person set a password, once."""

    selector = models.CharField(max_length=32, unique=True)
    #: SHA-256 of the secret, hexadecimal.
    digest = models.CharField(max_length=64)
    user = models.ForeignKey(User, models.CASCADE, related_name="tickets")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"link for {self.user_id}"


class Kept(models.Model):
    """Counts of login throttling. They are in Postgres, so every web process sees them without Redis."""

    key = models.CharField(primary_key=True, max_length=255)
    value = models.JSONField()
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.key


class TokenColumns(models.Model):
    """``fb_<selector>_<secret>``: the selector finds the row; only the hash of the secret is stored."""

    name = models.CharField(max_length=200)
    selector = models.CharField(max_length=32, unique=True)
    #: SHA-256 of the secret, hexadecimal. A random secret of 256 bits needs no slow hash.
    digest = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.name


class AgentToken(TokenColumns):
    """Lets a server sync with one environment, and nothing else."""

    environment = models.CharField(max_length=64)
    #: The only service whose pods can use it, and how their names begin; empty for any.
    service = models.CharField(max_length=64, blank=True, db_default="", default="")
    name_prefix = models.CharField(max_length=64, blank=True, db_default="", default="")


class ApiToken(TokenColumns):
    """Lets a program use the API with a role, or only read ``/metrics``."""

    #: A token with this role reads ``/metrics`` and may do nothing else. No person has this role.
    METRICS = "metrics"
    ROLES = (*Role.values, METRICS)

    role = models.CharField(max_length=16, choices=[*Role.choices, (METRICS, "Metrics only")])
    #: The only environment it works in; empty for all of them.
    environment = models.CharField(max_length=64, blank=True, db_default="", default="")
    #: Username of the person who received its text and answers for it; empty when unknown.
    owner = models.CharField(max_length=150, blank=True, db_default="", default="")

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(role__in=[*Role.values, "metrics"]), name="api_token_role_known"
            ),
        )


class SavedView(models.Model):
    """A list as one person filtered and ordered it: a page of the dashboard and its parameters."""

    owner = models.ForeignKey(User, models.CASCADE, related_name="saved_views")
    environment = models.CharField(max_length=64)
    name = models.CharField(max_length=64)
    #: Name of the page, as its URL pattern has it. An address is never stored.
    page = models.CharField(max_length=32)
    #: Parameter -> its value.
    query = models.JSONField(default=dict, blank=True)
    #: Whether everyone who can read the environment sees it.
    shared = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["owner", "environment", "name"], name="saved_view_named_once"),
        )
        indexes = (models.Index(fields=["environment"], condition=Q(shared=True), name="saved_view_shared"),)

    def __str__(self) -> str:
        return self.name
