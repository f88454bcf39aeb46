from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Role(models.TextChoices):
    """Each may do what the one before may, and more."""

    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"


class User(AbstractUser):
    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)

    class Meta(AbstractUser.Meta):
        constraints = (models.CheckConstraint(condition=Q(role__in=Role.values), name="user_role_known"),)


class TokenColumns(models.Model):
    """``fb_<selector>_<secret>``: the selector finds the row, only the secret's hash is kept."""

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


class ApiToken(TokenColumns):
    """Lets a program use the API with a role."""

    role = models.CharField(max_length=16, choices=Role)

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(role__in=Role.values), name="api_token_role_known"),
        )
