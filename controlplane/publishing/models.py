from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class OutboxEntry(models.Model):
    """A committed revision that must reach Redis. The transaction of the edit writes it.

    It has no content: publishing always takes the newest state, so order does not matter.
    """

    environment = models.CharField(max_length=64)
    epoch = models.BigIntegerField()
    revision = models.BigIntegerField()
    #: The dependency whose breaker must be closed in Redis, once; empty for none.
    reset = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    published_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "outbox entries"
        constraints = (
            models.UniqueConstraint(fields=["environment", "epoch", "revision"], name="outbox_revision_once"),
        )
        indexes = (
            models.Index(
                fields=["environment", "revision"],
                condition=Q(published_at__isnull=True),
                name="outbox_waiting",
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment} {self.epoch}.{self.revision}"


#: The two that can confirm a restore: how ``Ahead.who`` begins.
REDIS = "Redis"
HISTORY = "The history in Postgres"


class Confirmed(models.QuerySet["Ahead"]):
    def of(self, environment: str) -> "Confirmed":
        """Without what a gateway of 0.1.0 noted for a pod alone, also after the migration that deleted it."""
        return self.filter(models.Q(who=REDIS) | models.Q(who__startswith=HISTORY), environment=environment)


class Ahead(models.Model):
    """A revision that Redis has and this database does not, because it was restored.

    What a pod reports is noted only when the history in this database has that revision.

    Once this is noted, nothing more is published in that epoch: the database would reach the same
    numbers again with other contents. ``manage.py republish --new-epoch`` starts a new epoch.
    """

    environment = models.CharField(max_length=64, primary_key=True)
    epoch = models.BigIntegerField()
    revision = models.BigIntegerField()
    #: ``Redis``, or the history in Postgres with the name of the pod that reported it.
    who = models.CharField(max_length=100)
    at = models.DateTimeField(db_default=Now())

    objects = Confirmed.as_manager()

    class Meta:
        verbose_name_plural = "ahead"

    def __str__(self) -> str:
        return f"{self.environment}: {self.who} knows {self.epoch}.{self.revision}"
